"""``anthropic:MODEL``: the official ``anthropic`` client, messages, streamed.

Tools and the system text form the cached prefix: the cache breakpoint stands behind the root zone, which is
byte-identical while the legal set stands. Trunk and leaf are one user message.

Of usage, ``input_tokens`` is everything that was read, as with the other routes: fresh, written to the cache and read
from it (the provider reports the three apart); ``cached_tokens`` is what was read from the cache.
"""

from __future__ import annotations

import json
from typing import Any, Final

from setpoint.adapters.proposers.provider import ProviderProposer, ReplyDraft
from setpoint.adapters.proposers.wire import raw_call_text, stable_json, token_count
from setpoint.kernel.proposal import Reply, StopReason, Usage
from setpoint.ports.proposer import Context

STOPS: Final[dict[str, StopReason]] = {
    "end_turn": "end_turn",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "refusal": "refusal",
}


class AnthropicProposer(ProviderProposer):
    """Speaks messages."""

    sdk = "anthropic"
    key_env = "ANTHROPIC_API_KEY"
    base_url_env = "ANTHROPIC_BASE_URL"

    def make_client(self, sdk: Any, key: str) -> Any:
        # The key is given, never looked for: the library would search files of the user's for one.
        return sdk.AsyncAnthropic(api_key=key, base_url=self.base_url, max_retries=0)

    def request(self, context: Context) -> dict[str, Any]:
        user = f"{context.zone('trunk')}\n\n{context.zone('leaf')}"
        request: dict[str, Any] = {
            "model": self.to.model,
            "max_tokens": self.limits.output_tokens,
            "system": [{"type": "text", "text": context.zone("root"), "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": user}],
            "stream": True,
        }
        if context.tools:
            request["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": stable_json(tool.schema)}
                for tool in context.tools
            ]
        if self.to.temperature is not None:
            # Not every version of the library has the argument; the endpoint decides.
            request["extra_body"] = {"temperature": self.to.temperature}
        return request

    async def send(self, client: Any, request: dict[str, Any], timeout_s: float) -> Any:
        return await client.messages.create(**request, timeout=timeout_s)

    def draft(self) -> _Draft:
        return _Draft()

    def reply(self, draft: ReplyDraft) -> Reply:
        stop = STOPS.get(draft.stop or "")
        if stop is None:
            raise self.fault("invalid", f"ended its reply with the unknown reason {draft.stop!r}", draft.usage)
        if stop == "refusal":
            raise self.fault("refused", f"refused: {draft.text or 'without a word'}", draft.usage)
        calls = tuple(raw_call_text(name, arguments or "{}", call_id) for name, arguments, call_id in draft.calls())
        return Reply(draft.text, calls, None, stop, draft.usage, draft.model or self.to.model)


class _Draft(ReplyDraft):
    """Takes events apart."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, int] = {}

    def take(self, piece: Any) -> None:
        match piece.type:
            case "message_start":
                self.model = str(piece.message.model or "")
                self._count(piece.message.usage)
            case "content_block_start":
                self._take_block(piece.index, piece.content_block)
            case "content_block_delta":
                self._take_delta(piece.index, piece.delta)
            case "message_delta":
                self.stop = piece.delta.stop_reason or self.stop
                self._count(piece.usage)
            case "message_stop":
                self.is_whole = True
            case _:
                pass  # pings, block ends, and events that are newer than this module

    def _take_block(self, index: int, block: Any) -> None:
        match block.type:
            case "text":
                self.add_text(block.text)
            case "tool_use":
                # Arguments come as deltas; a server that sends them whole puts them here.
                whole = json.dumps(block.input) if block.input else None
                self.add_call(index, name=block.name, arguments=whole, call_id=block.id or "")
            case _:
                pass  # thinking is neither shown again nor evidence

    def _take_delta(self, index: int, delta: Any) -> None:
        match delta.type:
            case "text_delta":
                self.add_text(delta.text)
            case "input_json_delta":
                self.add_call(index, arguments=delta.partial_json)
            case _:
                pass

    def _count(self, report: Any) -> None:
        """Counts are cumulative; a later report replaces what it names."""
        if report is None:
            return
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(report, name, None)
            if value is not None:
                self._counts[name] = token_count(value)
        read = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        self.usage = Usage(
            input_tokens=self._counts.get("input_tokens", 0) + read + written,
            output_tokens=self._counts.get("output_tokens", 0),
            cached_tokens=read,
        )

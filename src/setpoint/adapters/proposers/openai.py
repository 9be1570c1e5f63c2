"""``openai:MODEL``: the official ``openai`` client, chat completions, any endpoint of that wire format.

The root zone is the system message and the tools, byte-identical while the legal set stands; trunk and leaf are one
user message. Replies are streamed, so that a cut is seen as a cut.
"""

from __future__ import annotations

import json
from typing import Any, Final

from setpoint.adapters.proposers.failures import told
from setpoint.adapters.proposers.provider import ProviderProposer, ReplyDraft
from setpoint.adapters.proposers.wire import raw_call_text, stable_json, token_count
from setpoint.kernel.proposal import Reply, StopReason, Usage
from setpoint.ports.proposer import Context

STOPS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "length",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class OpenAIProposer(ProviderProposer):
    """Speaks chat completions."""

    sdk = "openai"
    key_env = "OPENAI_API_KEY"
    base_url_env = "OPENAI_BASE_URL"

    def make_client(self, sdk: Any, key: str) -> Any:
        return sdk.AsyncOpenAI(api_key=key, base_url=self.base_url, max_retries=0)

    def request(self, context: Context) -> dict[str, Any]:
        # Only OpenAI's own endpoint knows the newer name, and for its newer models only the newer name.
        length = "max_tokens" if self.base_url else "max_completion_tokens"
        request: dict[str, Any] = {
            "model": self.to.model,
            "messages": [
                {"role": "system", "content": context.zone("root")},
                {"role": "user", "content": f"{context.zone('trunk')}\n\n{context.zone('leaf')}"},
            ],
            length: self.limits.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if context.tools:
            request["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": stable_json(tool.schema),
                    },
                }
                for tool in context.tools
            ]
        if self.to.temperature is not None:
            request["temperature"] = self.to.temperature
        return request

    async def send(self, client: Any, request: dict[str, Any], timeout_s: float) -> Any:
        return await client.chat.completions.create(**request, timeout=timeout_s)

    def draft(self) -> _Draft:
        return _Draft()

    def reply(self, draft: ReplyDraft) -> Reply:
        assert isinstance(draft, _Draft)
        stop = STOPS.get(draft.stop or "")
        if stop is None:
            raise self.fault("invalid", f"ended its reply with the unknown reason {draft.stop!r}", draft.usage)
        if stop == "refusal" or draft.refusal:
            raise self.fault("refused", f"refused: {told(draft.refusal) or 'content filter'}", draft.usage)
        calls = tuple(raw_call_text(name, arguments or "{}", call_id) for name, arguments, call_id in draft.calls())
        if calls and stop == "end_turn":
            stop = "tool_use"  # some servers say "stop" for both
        return Reply(draft.text, calls, None, stop, draft.usage, draft.model or self.to.model)


class _Draft(ReplyDraft):
    """Takes chunks apart."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal = ""

    def take(self, piece: Any) -> None:
        if isinstance(piece.model, str):
            self.model = piece.model
        if piece.usage is not None:
            self.usage = _usage(piece.usage)
        for choice in piece.choices or ():
            if choice.finish_reason:
                self.stop, self.is_whole = str(choice.finish_reason), True
            delta = choice.delta
            if delta is None:
                continue
            self.add_text(delta.content)
            if getattr(delta, "refusal", None):
                self.refusal = (self.refusal + delta.refusal)[:1_000]
            for call in delta.tool_calls or ():
                self._take_call(call)

    def _take_call(self, call: Any) -> None:
        index = call.index
        if index is None:  # some servers send whole calls without an index
            index = self.last_index + 1 if call.id else max(0, self.last_index)
        function = call.function
        name, arguments = (function.name, function.arguments) if function else (None, None)
        if isinstance(arguments, dict):  # against the format, but what it means is plain
            arguments = json.dumps(arguments)
        self.add_call(int(index), name=name, arguments=arguments, call_id=call.id or "")


def _usage(report: Any) -> Usage:
    details = getattr(report, "prompt_tokens_details", None)
    return Usage(
        input_tokens=token_count(report.prompt_tokens),
        output_tokens=token_count(report.completion_tokens),
        cached_tokens=token_count(getattr(details, "cached_tokens", None)),
    )

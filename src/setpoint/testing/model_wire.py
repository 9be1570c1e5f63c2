"""What a scripted model provider says, and how two providers write it: OpenAI chat completions, Anthropic messages.

Used by ``setpoint.testing.model_server``, which is where a test starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str = "{}"  # the text as the model emitted it


@dataclass(frozen=True, slots=True)
class Say:
    """One answer.

    ``stop`` None: "tool_use" when there are calls, else "end_turn". ``cut_after`` pieces the connection is reset, or,
    with ``cut`` "end", the stream ends as if it were whole. ``error_after`` pieces comes an error event of
    ``error_type``. ``hold_after`` pieces nothing more is sent until the client goes away.
    """

    text: str = ""
    calls: Sequence[ToolCall] = ()
    stop: Literal["end_turn", "tool_use", "length", "refusal"] | None = None
    refusal: str = ""  # OpenAI sends a refusal's words apart from the content
    input_tokens: int = 100
    output_tokens: int = 20
    cached_tokens: int = 0
    reports_usage: bool = True
    piece_chars: int = 8  # of one streamed piece; short, so that every text comes in several
    piece_ms: int = 0  # pause before each piece
    cut_after: int | None = None
    cut: Literal["reset", "end"] = "reset"
    error_after: int | None = None
    error_type: str = "overloaded_error"
    hold_after: int | None = None

    @property
    def reason(self) -> str:
        return self.stop or ("tool_use" if self.calls else "end_turn")


@dataclass(frozen=True, slots=True)
class Fail:
    """An HTTP error in the provider's form."""

    status: int
    type: str = ""
    code: str | None = None
    message: str = "scripted failure"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body sent as it is, with status 200: what a proxy or a broken server may answer."""

    body: bytes
    content_type: str = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer at all, until the client goes away."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is reset before any answer."""


Step = Say | Fail | Bytes | Hang | Drop


class Wire:
    """One request's format. ``head``, ``pieces`` and ``tail`` are a stream, ``whole`` the same unstreamed."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.model = str(request.get("model", ""))
        self.streams = bool(request.get("stream"))
        self.wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))

    def head(self, say: Say) -> Iterator[bytes]:
        raise NotImplementedError

    def pieces(self, say: Say) -> Iterator[bytes]:
        raise NotImplementedError

    def tail(self, say: Say) -> Iterator[bytes]:
        raise NotImplementedError

    def error(self, say: Say) -> bytes:
        raise NotImplementedError

    def whole(self, say: Say) -> dict[str, Any]:
        raise NotImplementedError

    def failure(self, fail: Fail) -> dict[str, Any]:
        raise NotImplementedError


class _OpenAIWire(Wire):
    STOPS: Final = {"end_turn": "stop", "tool_use": "tool_calls", "length": "length", "refusal": "content_filter"}

    def head(self, say: Say) -> Iterator[bytes]:
        yield self._delta({"role": "assistant", "content": ""})

    def pieces(self, say: Say) -> Iterator[bytes]:
        for text in _pieces(say.text, say):
            yield self._delta({"content": text})
        for text in _pieces(say.refusal, say):
            yield self._delta({"refusal": text})
        for index, call in enumerate(say.calls):
            function = {"name": call.name, "arguments": ""}
            first = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
            yield self._delta({"tool_calls": [first]})
            for text in _pieces(call.arguments, say):
                yield self._delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def tail(self, say: Say) -> Iterator[bytes]:
        yield self._delta({}, self.STOPS[say.reason])
        if say.reports_usage and self.wants_usage:
            yield _event({**self._chunk(), "choices": [], "usage": self._usage(say)})
        yield b"data: [DONE]\n\n"

    def error(self, say: Say) -> bytes:
        return _event({"error": {"type": say.error_type, "code": None, "message": "scripted", "param": None}})

    def whole(self, say: Say) -> dict[str, Any]:
        calls = [
            {"id": f"call_{n}", "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for n, c in enumerate(say.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": say.text, "refusal": say.refusal or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self.STOPS[say.reason], "logprobs": None}
        return {**self._chunk(), "object": "chat.completion", "choices": [choice], "usage": self._usage(say)}

    def failure(self, fail: Fail) -> dict[str, Any]:
        return {"error": {"message": fail.message, "type": fail.type, "param": None, "code": fail.code}}

    def _chunk(self) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": self.model}

    def _delta(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _event({**self._chunk(), "choices": [choice], "usage": None})

    def _usage(self, say: Say) -> dict[str, Any]:
        return {
            "prompt_tokens": say.input_tokens,
            "completion_tokens": say.output_tokens,
            "total_tokens": say.input_tokens + say.output_tokens,
            "prompt_tokens_details": {"cached_tokens": say.cached_tokens},
        }


class _AnthropicWire(Wire):
    STOPS: Final = {"end_turn": "end_turn", "tool_use": "tool_use", "length": "max_tokens", "refusal": "refusal"}

    def head(self, say: Say) -> Iterator[bytes]:
        usage = {**self._usage(say), "output_tokens": 1}
        message = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield self._event("message_start", message=message)
        yield self._event("ping")

    def pieces(self, say: Say) -> Iterator[bytes]:
        index = 0
        words = say.text or say.refusal
        if words:
            yield self._event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for text in _pieces(words, say):
                yield self._event("content_block_delta", index=index, delta={"type": "text_delta", "text": text})
            yield self._event("content_block_stop", index=index)
            index += 1
        for call in say.calls:
            block = {"type": "tool_use", "id": f"toolu_{index}", "name": call.name, "input": {}}
            yield self._event("content_block_start", index=index, content_block=block)
            for text in ["", *_pieces(call.arguments, say)]:
                delta = {"type": "input_json_delta", "partial_json": text}
                yield self._event("content_block_delta", index=index, delta=delta)
            yield self._event("content_block_stop", index=index)
            index += 1

    def tail(self, say: Say) -> Iterator[bytes]:
        delta = {"stop_reason": self.STOPS[say.reason], "stop_sequence": None}
        yield self._event("message_delta", delta=delta, usage={"output_tokens": say.output_tokens})
        yield self._event("message_stop")

    def error(self, say: Say) -> bytes:
        return self._event("error", error={"type": say.error_type, "message": "scripted"})

    def whole(self, say: Say) -> dict[str, Any]:
        words = say.text or say.refusal
        content: list[dict[str, Any]] = [{"type": "text", "text": words}] if words else []
        for call in say.calls:
            block = {"type": "tool_use", "id": f"toolu_{len(content)}", "name": call.name}
            content.append({**block, "input": json.loads(call.arguments)})
        reason = {"stop_reason": self.STOPS[say.reason], "stop_sequence": None}
        return {**self._message(), "content": content, **reason, "usage": self._usage(say)}

    def failure(self, fail: Fail) -> dict[str, Any]:
        return {"type": "error", "error": {"type": fail.type or "api_error", "message": fail.message}}

    def _message(self) -> dict[str, Any]:
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": self.model}

    def _usage(self, say: Say) -> dict[str, Any]:
        """This provider reports what was read from the cache apart from the fresh input."""
        return {
            "input_tokens": say.input_tokens - say.cached_tokens,
            "output_tokens": say.output_tokens,
            "cache_read_input_tokens": say.cached_tokens,
            "cache_creation_input_tokens": 0,
        }

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\n".encode() + _event({"type": kind, **fields})


WIRES: Final[dict[str, type[Wire]]] = {"/v1/chat/completions": _OpenAIWire, "/v1/messages": _AnthropicWire}


def _pieces(text: str, say: Say) -> list[str]:
    return [text[start : start + say.piece_chars] for start in range(0, len(text), say.piece_chars)]


def json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii")


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"

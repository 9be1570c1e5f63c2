"""``replay:FILE``: the replies of a recorded trajectory, in order.

The file is an export of one stream, one event envelope a line (docs/reference/events.md), or a certificate, which
holds the same events and the payloads of long replies besides. ``ModelReplied`` becomes the same reply again, with its
recorded usage, and ``ModelFailed`` the same fault, so that the loop takes the same road. What the loop makes of them
is judged anew; for a proof that nothing differs there is ``setpoint replay --strict``.

Stateless like a script: the position is ``Context.cursor``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from setpoint.kernel import events
from setpoint.kernel.errors import LogCorrupt, ProposerFault, UsageFault
from setpoint.kernel.keys import digest_bytes
from setpoint.kernel.proposal import Reply, Usage
from setpoint.ports.proposer import Context, RouteLimits

EXPORT_BYTES_MAX: Final = 1 << 30
"""An export of 100,000 turns has about 250 MB; events of no interest are not kept."""
LINE_BYTES_MAX: Final = 16 << 20

Answer = Reply | ProposerFault
PayloadOf = Callable[[str], bytes]


class ReplayProposer:
    """Plays the recorded answers of ``path``.

    ``payload_of`` gives the bytes of a payload by digest; without it a reply that was too long to lie in its event is
    a UsageFault, which names the event.
    """

    def __init__(self, route: str, path: Path, payload_of: PayloadOf | None = None) -> None:
        self.route = route
        self._path = path
        self._answers = _answers(path, payload_of)
        longest = max((a.usage.output_tokens for a in self._answers if isinstance(a, Reply)), default=0)
        self.limits = RouteLimits(output_tokens=longest)

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        position = context.cursor
        if position >= len(self._answers):
            message = f"The recording {self._path.name} has no answer left after {len(self._answers)}."
            raise ProposerFault("exhausted", message, cursor=position)
        match self._answers[position]:
            case Reply() as reply:
                return reply
            case ProposerFault() as recorded:
                # A new exception each time: a raised one carries its traceback along.
                raise ProposerFault(
                    recorded.kind,
                    recorded.message,
                    retry_after_ms=recorded.retry_after_ms,
                    usage=recorded.usage,
                    cursor=recorded.cursor,
                )

    async def close(self) -> None:
        """Nothing to release."""


class _Envelope(msgspec.Struct):
    """What is read of an event envelope; its other fields belong to the chain."""

    stream: str
    seq: int
    type: str
    data: msgspec.Raw


class _Certificate(msgspec.Struct):
    """What is read of a certificate file. Whether it is genuine is for ``certificate verify``, not for a replay."""

    events: list[_Envelope]
    payloads: dict[str, bytes] = {}  # base64 on file


def _answers(path: Path, payload_of: PayloadOf | None) -> list[Answer]:
    answers: list[Answer] = []
    streams: set[str] = set()
    try:
        with path.open("rb") as file:
            if path.stat().st_size > EXPORT_BYTES_MAX:
                raise UsageFault(f"The recording {path} has more than {EXPORT_BYTES_MAX} bytes.")
            if file.peek(1)[: len(_CERTIFICATE_START)] == _CERTIFICATE_START:
                found, payload_of = _certificate(path, file.read(), payload_of)
            else:
                found = _lines(path, file)
            for place, envelope in found:
                streams.add(envelope.stream)
                if envelope.type in ("ModelReplied", "ModelFailed"):
                    answers.append(_answer(envelope, len(answers) + 1, place, payload_of))
    except OSError as error:
        raise UsageFault(f"The recording {path} cannot be read: {error.strerror}.") from error
    if len(streams) != 1:
        what = "holds no event" if not streams else f"holds {len(streams)} trajectories"
        raise UsageFault(f"The recording {path} {what}; export exactly one, with 'setpoint events ID --json'.")
    return answers


_CERTIFICATE_START: Final = b'{"apiVersion"'
"""A certificate is canonical JSON, so its first key is known; an envelope has no such key."""


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, _Envelope]]:
    decoder = msgspec.json.Decoder(_Envelope)
    for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES_MAX), b""), start=1):
        if line.strip():
            yield f"{path}:{number}", _envelope(decoder, line, f"{path}:{number}")


def _certificate(
    path: Path, data: bytes, payload_of: PayloadOf | None
) -> tuple[Iterator[tuple[str, _Envelope]], PayloadOf | None]:
    try:
        certificate = msgspec.json.decode(data, type=_Certificate)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageFault(f"{path}: not a certificate: {error}.") from error
    kept = certificate.payloads
    return ((f"{path} event {e.seq}", e) for e in certificate.events), kept.__getitem__ if kept else payload_of


def _envelope(decoder: msgspec.json.Decoder[_Envelope], line: bytes, place: str) -> _Envelope:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageFault(f"{place}: not an event envelope: {error}.") from error


def _answer(envelope: _Envelope, cursor: int, place: str, payload_of: PayloadOf | None) -> Answer:
    try:
        match events.decode(envelope.type, bytes(envelope.data)):
            case events.ModelReplied() as said:
                document = said.reply if said.reply is not None else _payload(said.reply_ref, place, payload_of)
                return Reply.of(document, usage=_usage(said), model=said.model, cursor=cursor)
            case events.ModelFailed() as failed:
                return ProposerFault(
                    failed.kind,
                    failed.message,
                    retry_after_ms=failed.retry_after_ms or None,
                    usage=_usage(failed),
                    cursor=cursor,
                )
            case other:
                raise AssertionError(f"{type(other).__name__} was not asked for")
    except (LogCorrupt, KeyError, TypeError, AttributeError) as error:
        raise UsageFault(f"{place}: the {envelope.type} event does not hold a reply: {error}.") from error


def _payload(ref: events.Ref | None, place: str, payload_of: PayloadOf | None) -> dict[str, Any]:
    if ref is None:
        raise UsageFault(f"{place}: the reply is neither in the event nor in a payload.")
    if payload_of is None:
        raise UsageFault(
            f"{place}: the reply of {ref.bytes} bytes lies in the payload {ref.ref}, which this export does not hold.",
            hint="Replay from the certificate, which holds it ('setpoint certificate export'), or 'setpoint replay'.",
        )
    try:
        data = payload_of(ref.ref)
    except KeyError:
        raise UsageFault(f"{place}: the certificate does not hold the payload {ref.ref}.") from None
    if digest_bytes(data) != ref.ref:
        raise UsageFault(f"{place}: the payload {ref.ref} was altered.")
    return json.loads(data)


def _usage(event: events.ModelReplied | events.ModelFailed) -> Usage:
    return Usage(event.input_tokens, event.output_tokens, event.cached_tokens, event.usd_micros)

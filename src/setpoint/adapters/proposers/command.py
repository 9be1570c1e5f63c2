"""``command:PROGRAM ARGS``: any program that speaks JSON lines (docs/how-to/models.md).

The program is started for the first proposal and kept. It reads one line for each proposal,

    {"context": {...}}                                  the fields of ``context_document``

and answers with one line, either what it proposes or why it cannot:

    {"thought": "...", "calls": [{"name": "...", "arguments": {...}}], "usage": {"input_tokens": 900, ...}}
    {"error": "overloaded", "message": "...", "retry_after_ms": 2000, "usage": {...}}

Further fields of a proposal: ``text``, ``raw`` (one text that should hold the calls), ``stop``, ``model``, ``cursor``.
``usage`` is the program's report of what a provider billed (``input_tokens``, ``output_tokens``, ``cached_tokens``,
``usd`` or ``usd_micros``). Diagnostics belong on stderr. The program runs in the manifest's directory with the user's
environment, since it needs the user's keys. It is the user's choice and is trusted like any other program they run;
what it *says* is not.

A program that exits, does not answer in time or speaks out of turn is killed with its whole process group, and
started anew for the next proposal. At the end it is killed too; if Setpoint itself dies, its input ends.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any, Final, cast

from setpoint.adapters.proposers.program import Program, ProgramEnded, ProgramSpokeWrong
from setpoint.adapters.proposers.wire import TOKENS_MAX, plain_text, raw_call, usage_of
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.kernel.proposal import RawCall, Reply, StopReason, Usage
from setpoint.ports.proposer import Context, RouteLimits

_REPLY_FIELDS: Final = frozenset({"thought", "text", "calls", "raw", "stop", "model", "usage", "cursor"})
_ERROR_FIELDS: Final = frozenset({"error", "message", "retry_after_ms", "usage", "cursor"})
_KINDS: Final = frozenset(
    {"overloaded", "rate_limited", "refused", "broken_stream", "timeout", "exhausted", "auth", "invalid"}
)
MESSAGE_CHARS_MAX: Final = 1_000
"""A fault's message goes into the log and before a person."""
_STOPS: Final = frozenset({"end_turn", "tool_use", "length", "stop_sequence", "refusal"})


def context_document(context: Context, deadline_ms: int) -> dict[str, Any]:
    """What a program is told: the ``context`` of one line.

    ``prompt`` is the whole prompt as one text and ``zones`` the same in its three parts (``root`` is stable across
    turns: a good system prompt). ``tools`` are the actions that are legal now, each with the JSON Schema of its
    arguments. ``items`` is the delta as data, ``notes`` what earlier attempts left behind. ``cursor`` is a number the
    program may keep its place by: it gets back what its last reply said. ``deadline_ms`` is the time for the answer.
    """
    return {
        "trajectory_id": context.trajectory_id,
        "turn": context.turn,
        "prompt": context.text,
        "zones": {"root": context.zone("root"), "trunk": context.zone("trunk"), "leaf": context.zone("leaf")},
        "tools": [
            {"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in context.tools
        ],
        "items": list(context.items),
        "notes": list(context.notes),
        "cursor": context.cursor,
        "deadline_ms": deadline_ms,
    }


class CommandProposer:
    """Speaks with one program. Concurrent proposals wait for each other: there is one pipe."""

    def __init__(self, route: str, command: str, base_dir: Path) -> None:
        try:
            self._argv = shlex.split(command)
        except ValueError as error:
            raise UsageFault(f"{route!r} is not a command: {error}.", hint="Quote it like a shell would.") from error
        if not self._argv:
            raise UsageFault(f"{route!r} names no program.")
        self.route = route
        self.limits = RouteLimits()
        self._cwd = base_dir
        self._program: Program | None = None
        self._turns = _Turns()

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        line = json.dumps({"context": context_document(context, deadline_ms)}).encode("ascii")
        program: Program | None = None
        answered = False
        try:
            async with asyncio.timeout(max(0, deadline_ms) / 1000), self._turns.lock():
                program = await self._running()
                answer = await program.ask(line)
            reply = self._read(answer)
            answered = True
        except TimeoutError as error:
            raise self._fault("timeout", f"did not answer within {deadline_ms} ms and was ended") from error
        except ProgramEnded as error:
            raise self._fault("broken_stream", str(error)) from error
        except (ProgramSpokeWrong, _NotAnAnswer) as error:
            raise self._fault("invalid", f"was ended: {error}") from error
        except _Declined as declined:
            answered = True
            raise declined.fault from None
        finally:
            # Whoever did not get a whole answer leaves no program behind: its late answer would be read as the next.
            if program is not None and not answered:
                await self._end(program)
        return reply

    async def close(self) -> None:
        """End the program and everything in its group. May be called again."""
        if self._program is not None:
            await self._end(self._program)

    async def _running(self) -> Program:
        loop = asyncio.get_running_loop()
        if self._program is not None and self._program.loop is not loop:
            self._program.abandon()
            self._program = None
        if self._program is None:
            try:
                self._program = await Program.start(self._argv, self._cwd)
            except OSError as error:
                message = f"cannot be started in {self._cwd}: {error.strerror or error}"
                raise self._fault("invalid", message) from error
        return self._program

    async def _end(self, program: Program) -> None:
        if self._program is program:
            self._program = None
        if program.loop is asyncio.get_running_loop():
            await program.end()
        else:
            program.abandon()

    def _fault(self, kind: str, what: str, **more: Any) -> ProposerFault:
        message = plain_text(f"The program {self._argv[0]!r} {what}.")
        return ProposerFault(kind, message[:MESSAGE_CHARS_MAX], **more)

    def _read(self, answer: bytes) -> Reply:
        try:
            document = json.loads(answer, parse_float=_Fraction, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise _NotAnAnswer(f"its line is not JSON ({error}): {_excerpt(answer)}") from error
        if not isinstance(document, dict):
            raise _NotAnAnswer(f"its line is not a JSON object: {_excerpt(answer)}")
        fields = cast("dict[str, Any]", document)
        if "error" in fields:
            raise _Declined(self._declined(fields))
        _refuse_unknown(fields, _REPLY_FIELDS)
        raw = None if fields.get("raw") is None else _text(fields, "raw")
        calls: tuple[RawCall, ...] = ()
        if "calls" in fields:
            if raw is not None:
                raise _NotAnAnswer("its line has both 'calls' and 'raw'")
            calls, raw = _calls(fields["calls"])
        texts = [_text(fields, key) for key in ("thought", "text") if fields.get(key) is not None]
        stop = fields.get("stop", "tool_use" if calls or raw is not None else "end_turn")
        if stop not in _STOPS:
            raise _NotAnAnswer(f"its 'stop' is {stop!r}; it must be one of {', '.join(sorted(_STOPS))}")
        return Reply(
            text="\n".join(texts),
            calls=calls,
            raw=raw,
            stop=cast("StopReason", stop),
            usage=_usage(fields),
            model=_text(fields, "model") if "model" in fields else self.route,
            cursor=_whole(fields, "cursor"),
        )

    def _declined(self, fields: dict[str, Any]) -> ProposerFault:
        _refuse_unknown(fields, _ERROR_FIELDS)
        kind = fields["error"]
        if kind not in _KINDS:
            raise _NotAnAnswer(f"its 'error' is {kind!r}; it must be one of {', '.join(sorted(_KINDS))}")
        message = _text(fields, "message") if "message" in fields else "without saying why"
        return self._fault(
            kind,
            f"answered {kind}: {message}",
            retry_after_ms=_whole(fields, "retry_after_ms"),
            usage=_usage(fields),
            cursor=_whole(fields, "cursor"),
        )


class _NotAnAnswer(Exception):
    """The line is not in the form the module's docstring gives."""


class _Declined(Exception):
    """The program answered in good form that it cannot propose; it keeps running."""

    def __init__(self, fault: ProposerFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Turns:
    """A lock for whichever event loop asks: one proposer may serve several loops, one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        return self._lock


# Fields of an answer


def _refuse_unknown(fields: dict[str, Any], known: frozenset[str]) -> None:
    for key in fields:
        if key not in known:
            raise _NotAnAnswer(f"its line has the unknown field {key!r}; known are {', '.join(sorted(known))}")


def _calls(calls: Any) -> tuple[tuple[RawCall, ...], str | None]:
    """Calls as they are said. What is not a list of calls goes on as ``raw`` text: parsing has the words for it."""
    try:
        if isinstance(calls, list) and all(_is_call(call) for call in cast("list[Any]", calls)):
            said = cast("list[dict[str, Any]]", calls)
            return tuple(raw_call(c.get("name"), c.get("arguments", {}), str(c.get("id", ""))) for c in said), None
        return (), json.dumps({"calls": calls})
    except RecursionError:
        raise _NotAnAnswer("its 'calls' are nested too deep") from None


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and cast("dict[str, Any]", call).keys() <= {"name", "arguments", "id"}


class _Fraction(float):
    """A JSON fraction that still knows its digits: a price is exact or refused, never a binary fraction."""

    def __new__(cls, text: str) -> _Fraction:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str

    def __str__(self) -> str:
        return self.text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return fields


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise _NotAnAnswer(f"its {key!r} is not a text")
    return plain_text(value)


def _whole(fields: dict[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TOKENS_MAX:
        raise _NotAnAnswer(f"its {key!r} is not a whole number")
    return value


def _usage(fields: dict[str, Any]) -> Usage:
    report = fields.get("usage")
    if report is None:
        return Usage()
    if not isinstance(report, dict):
        raise _NotAnAnswer("its 'usage' is not an object")
    try:
        return usage_of(cast("dict[str, Any]", report))
    except ValueError as error:
        raise _NotAnAnswer(str(error)) from error


def _excerpt(line: bytes) -> str:
    text = line[:120].decode("utf-8", "replace")
    return repr(text + ("..." if len(line) > 120 else ""))

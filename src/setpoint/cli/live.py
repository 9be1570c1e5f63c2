"""A pursuit while it runs: signals, the events as they are written, and one line a turn for people."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, TypeVar

from setpoint.adapters.stores.export import envelope_line
from setpoint.app.runtime import Observer, Runtime
from setpoint.cli.terminal import (
    Interrupted,
    OutputClosed,
    is_terminal,
    one_line,
    printable,
    say_bytes,
    styled,
    talk,
    width_of,
)
from setpoint.cli.wording import checks_said, dollars, paths_said, progress_said, span
from setpoint.kernel.events import (
    ApprovalRequested,
    Authorized,
    ClaimRejected,
    Committed,
    DeltaMeasured,
    Event,
    EvidenceRecorded,
    ModelFailed,
    ModelReplied,
    QuestionAsked,
    Refused,
    RolledBack,
    Routed,
    Stalled,
    TaskAccepted,
    TurnEnded,
    TurnStarted,
)
from setpoint.kernel.record import Record
from setpoint.ports.log import ZERO_HASH

T = TypeVar("T")
_BREAKS: Final = re.compile(r"[\t\r\n]+")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end. A signal cancels it in order, then raises Interrupted; a second one ends the process at once.

    Nothing is lost either way: the log is ahead of every effect, and sandboxed processes die with this one.
    """
    caught: list[int] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None

        def on_signal(signum: int) -> None:
            if caught:
                os._exit(128 + signum)
            caught.append(signum)
            main.cancel()

        for signum in _SIGNALS:
            loop.add_signal_handler(signum, on_signal, signum)
        try:
            return await coroutine
        finally:
            for signum in _SIGNALS:
                loop.remove_signal_handler(signum)

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if not caught:
            raise
        raise Interrupted(caught[0]) from None


class Watch:
    """What is shown of one pursuit: envelopes on stdout with ``--json``, else progress on stderr.

    ``observer`` is given to the runtime; it only takes notes, since the engine must not fail for want of a reader.
    """

    def __init__(self, runtime: Runtime, *, as_json: bool) -> None:
        self._runtime = runtime
        self._as_json = as_json
        self._progress = Progress()
        self._news = asyncio.Event()
        self._positions: dict[str, tuple[int, str]] = {}
        self.trajectory_id = ""

    @property
    def observer(self) -> Observer:
        return self._observe

    def start_after(self, trajectory_id: str) -> None:
        """Show only what is written from now on to a trajectory that exists."""
        head = self._runtime.log.head(trajectory_id)
        self._positions[trajectory_id] = (head.seq, head.hash)

    def start_before_all(self, stream: str) -> None:
        """Show everything of a stream, what lies in the log already too."""
        self._positions[stream] = (0, ZERO_HASH)
        self._news.set()

    def _observe(self, turn: int, event: Event, record: Record) -> None:
        self.trajectory_id = record.trajectory_id
        self._positions.setdefault(record.trajectory_id, (0, ZERO_HASH))
        if self._as_json:
            self._news.set()
        else:
            self._progress.see(turn, event, record)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` while its events are shown. OutputClosed cancels the work: nobody looks any more."""
        async with self._shown():
            task = asyncio.ensure_future(work)
            tail = asyncio.ensure_future(self._tail()) if self._as_json else None
            waited = {task} if tail is None else {task, tail}
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if tail is not None and tail.done():
                    await _cancelled(task)
                    tail.result()
                return await task
            finally:
                await _cancelled(task)
                if tail is not None:
                    await _cancelled(tail)

    @contextlib.asynccontextmanager
    async def _shown(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._progress.close()
            if self._as_json and not isinstance(sys.exc_info()[1], OutputClosed):
                self._say_new()

    async def _tail(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._say_new()
            await asyncio.sleep(0.05)  # events come in bursts; one read shows them all

    def _say_new(self) -> None:
        for trajectory_id, (seq, prev) in list(self._positions.items()):
            for stored in self._runtime.log.read(trajectory_id, seq, prev=prev):
                self._positions[trajectory_id] = (stored.seq, stored.hash)
                say_bytes(envelope_line(stored) + b"\n")


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


class Progress:
    """One line a turn on stderr; on a terminal the present turn's line grows in place."""

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._drawn = ""  # the line that stands now
        self._forget()

    def _forget(self) -> None:
        self._phase = ""
        self._proposed: list[str] = []
        self._refused: list[str] = []
        self._checks: dict[str, str] = {}
        self._fate = ""

    def see(self, turn: int, event: Event, record: Record) -> None:
        """Take one event in, and show what is worth a line."""
        self._note(event)
        match event:
            case TaskAccepted():
                models = ", ".join(event.models) or "no model"
                self._line(f"{record.trajectory_id}  {event.name}  {event.exposure}  {event.tier} ({event.rung})")
                self._line(f"  by {models}", "dim")
            case TurnEnded():
                self._line(self._turn(turn, record, event.outcome.replace("_", " ")), _STYLES.get(event.outcome, ""))
                self._forget()
            case Stalled() if event.tier != "halt":
                self._line(f"  stalled ({event.reason}): {event.tier}", "yellow")
            case Routed():
                self._line(f"  route: {event.route or 'none is left'} ({event.reason})", "yellow")
            case QuestionAsked():
                self._line(f"  asks {event.question_id}: {event.question}", "cyan")
            case ApprovalRequested():
                self._line(f"  asks people: {event.ticket_id} (setpoint approve {event.ticket_id})", "cyan")
            case Committed() if event.changed:
                self._line(f"  committed {_count(event.changed, 'path')}: {paths_said(event.paths[:5])}")
            case DeltaMeasured() if turn == 0:
                self._line(f"baseline  {checks_said(self._checks)}  delta {progress_said(record.progress)}")
                self._forget()
            case _ if self._live:
                self._redraw(self._turn(turn, record, self._phase) if turn else f"baseline  {self._phase}")
            case _:
                pass

    def _turn(self, turn: int, record: Record, outcome: str) -> str:
        several = len(record.models) > 1 and record.route_index < len(record.models)
        route = record.models[record.route_index] if several else ""
        parts = [f"turn {turn}", route, one_line(", ".join(self._proposed) or "-", 60)]
        if self._refused:
            parts.append(f"refused {', '.join(self._refused)}")
        if self._fate:
            parts.append(self._fate)
        parts += [outcome, checks_said(self._checks), f"delta {progress_said(record.progress)}"]
        spent = record.spent
        parts.append(f"{spent.tokens} tokens ${dollars(spent.usd_micros)} {span(spent.elapsed_ms)}")
        return "  ".join(part for part in parts if part)

    def _line(self, text: str, style: str = "") -> None:
        self.close()
        talk(printable(_BREAKS.sub(" ", text)), style)

    def _redraw(self, text: str) -> None:
        width = width_of(sys.stderr) or 100
        line = printable(_BREAKS.sub(" ", text))[: width - 1]
        if line == self._drawn:
            return
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\r\x1b[K" + styled(line, "dim", sys.stderr))
            sys.stderr.flush()
        self._drawn = line

    def close(self) -> None:
        """Leave no half line behind."""
        if self._drawn:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
            self._drawn = ""

    def _note(self, event: Event) -> None:
        """What one event adds to the line of its turn."""
        match event:
            case TurnStarted(stage=stage):
                self._forget()
                self._phase = "asking the model" + ("" if stage == "nominal" else f" ({stage})")
            case ModelReplied():
                self._phase = "ruling"
            case ModelFailed(kind=kind, message=message):
                self._fate = one_line(f"model failed ({kind}): {message}", 100)
            case Authorized(tool=tool, path=path):
                self._proposed.append(f"{tool} {paths_said([path])}".strip())
                self._phase = f"running {tool}"
            case Refused(tool=tool, reason=reason):
                self._refused.append(f"{tool or 'reply'} ({reason})")
            case EvidenceRecorded(check=check, verdict=verdict):
                self._phase = "judging"
                if check.startswith("done/") or verdict != "pass":
                    self._checks[check] = verdict
            case RolledBack(note=note, reason=reason):
                self._fate = one_line(note or f"rolled back ({reason})", 100)
            case ClaimRejected():
                self._fate = self._fate or "claim rejected"
            case _:
                pass


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


_STYLES: Final = {"kept": "green", "rolled_back": "red", "refused": "yellow", "model_failed": "yellow"}

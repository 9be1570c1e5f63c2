"""What everything that moves a run forward holds: its program, its journal, the time, and the way outside."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from setpoint.engine.runs.journal import RunJournal
from setpoint.engine.runs.program import Program, Values
from setpoint.engine.slots import ModelSlots
from setpoint.kernel import limits
from setpoint.kernel.effects import said
from setpoint.kernel.retry import Breaker
from setpoint.kernel.run_events import NodeFailed
from setpoint.kernel.run_record import RunRecord, scope_of
from setpoint.ports.approver import Approvers
from setpoint.ports.clock import Clock
from setpoint.ports.proposer import Proposer

_OWN: Final = str(Path(__file__).resolve().parents[2]) + os.sep


class Parked(Exception):
    """Nothing more can be done now; ``record.waits`` say what for."""


class Fails(Exception):
    """The run cannot reach its end: what it did is taken back."""

    def __init__(self, reason: str, message: str, code: int = 11) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, code


class Pauses(Exception):
    """A person must look before anything else is done."""

    def __init__(self, reason: str, message: str, node: str = "") -> None:
        super().__init__(message)
        self.reason, self.message, self.node = reason, message, node


class Asked(Exception):
    """A person asked for something that stands at this boundary; the walk ends so that it can be done."""


@dataclass(slots=True)
class Shared:
    """What all runs of one process have in common: slots for model calls, services, health of dependencies, chance."""

    slots: ModelSlots
    services: Mapping[str, Any] = field(default_factory=dict[str, Any])
    breakers: dict[str, Breaker] = field(default_factory=dict[str, Breaker])
    sent_at: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    chance: Callable[[], float] = lambda: 0.5


@dataclass(slots=True)
class Hand:
    """One run in the hands of its owner."""

    program: Program
    journal: RunJournal
    clock: Clock
    shared: Shared
    approvers: Approvers
    judges: Callable[[], Proposer | None]
    start_child: Callable[[Hand, str, Program, tuple[Values, Values], str], Awaitable[None]]
    """Create the child run of that id (if it is not there yet), with its input and first state, and see to it that it
    is worked on."""
    child_outcome: Callable[[str], tuple[RunRecord, Any] | None]
    """The record and output of a child that has ended, None while it goes on."""
    ask_child: Callable[[str, str], None]
    """Leave a request (cancel, kill) for a child."""
    around_step: Callable[[Callable[[], Any]], Any]
    """How a step's code is called: test mode puts a guard around it."""
    input: Values = field(default_factory=dict[str, Any])

    @property
    def record(self) -> RunRecord:
        return self.journal.record

    @property
    def run_id(self) -> str:
        return self.journal.record.run_id

    def state_at(self, node: str) -> Values:
        """The state as a node sees it; a copy of its own."""
        return self.journal.values_at(scope_of(self.journal.record.scopes, node))


def run_code(hand: Hand, path: str, what: str, code: Any, *arguments: Any) -> Any:
    """Call a pure function of the author's. What it raises is a bug of the definition: the run pauses, or fails."""
    try:
        return hand.around_step(lambda: code(*arguments))
    except Fails:  # the author's own word that the run has failed
        raise
    except Exception as error:  # the author's code may raise anything, and none of it may end the worker
        raise bug(hand, path, raised(f"{what} of {path}", error)) from error


def bug(hand: Hand, path: str, message: str) -> Fails | Pauses:
    """The end of a walk at a bug of the definition, as its author wants it; it is recorded with whatever comes next."""
    attempt = hand.record.attempts.get(path, 0) + 1
    hand.journal.add(NodeFailed(node=path, kind="bug", message=message, attempt=attempt))
    return Fails("NodeFailed", message) if hand.program.on_bug == "fail" else Pauses("NodeFailed", message, path)


def unready(hand: Hand, path: str, message: str) -> Pauses:
    """The end of a walk where something is missing that a person has to see to, and no bug of the definition."""
    attempt = hand.record.attempts.get(path, 0) + 1
    hand.journal.add(NodeFailed(node=path, kind="refused", message=message, attempt=attempt))
    return Pauses("NodeFailed", message, path)


def raised(whose: str, error: BaseException) -> str:
    """What the author's code raised, and the innermost line of it: ``... raised ValueError: no rate (shop.py:70)``.
    However long the error's own words are, the line stands."""
    place = place_of(error)
    words = said(f"{whose} raised {type(error).__name__}: {error}")
    return said(f"{words[: limits.REASON_CHARS_MAX - len(place) - 3]} ({place})") if place else words


def place_of(error: BaseException) -> str:
    """``file:line`` of the innermost frame that is the author's, wherever it is installed; "" when there is none."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    frames = [(file, line) for file, line in frames if not file.startswith((_OWN, "<"))]
    libraries = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
    own = [one for one in frames if not one[0].startswith(libraries)]
    found = own or [one for one in frames if one[0].startswith(libraries[1:]) and "/pydantic" not in one[0]]
    return f"{found[-1][0]}:{found[-1][1]}" if found else ""

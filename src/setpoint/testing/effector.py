"""An outside world in memory, with a ledger, troubles by script, a probe and a way back.

    world = FakeEffector("timeout_after_effect")     # befalls the first delivery; then all goes well

    async def issue_refund(ctx, order_id):           # the capability
        return await world.perform(ctx.key, {"order_id": order_id})

    async def find_refund(ctx, order_id):            # its probe
        return await world.probe(ctx.key)

    ...
    assert world.effects == {"refund:A-1": 1}

The world outlives the process that is played to crash: keep the object, open the runtime anew. It needs no clock: what
would take time is a scripted outcome.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from setpoint.kernel.effects import (
    CannotTell,
    DidNotHappen,
    EffectDeclined,
    EffectInDoubt,
    EffectNotSent,
    Happened,
    ProbeAnswer,
)
from setpoint.testing.crash import Crash

TroubleName = Literal[
    "none",
    "timeout_after_effect",
    "drop",
    "late",
    "duplicate",
    "crash_before_effect",
    "crash_after_effect",
    "bug_after_effect",
    "transient",
    "rate_limited",
    "permanent",
]
"""none: it goes well. timeout_after_effect: done, and the reply is lost. drop: the request is lost. late: it arrives
when the test calls ``deliver_late``, and the caller has given up. duplicate: it is delivered twice.
crash_before_effect, crash_after_effect: the caller's process dies (``Crash``). bug_after_effect: done, and the client
code raises KeyError. transient: no connection. rate_limited: 429. permanent: the other side says no,
but never to a key that it remembers as done."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befalls the next ``times`` deliveries; ``retry_after_ms`` is the pause that a rate limit asks for."""

    name: TroubleName
    times: int = 1
    retry_after_ms: int = 1_000

    def __post_init__(self) -> None:
        if self.name not in get_args(TroubleName):
            raise ValueError(f"{self.name!r} is no trouble; troubles are {', '.join(get_args(TroubleName))}")
        if self.times < 1 or self.retry_after_ms < 0:
            raise ValueError(f"{self}: times is at least 1, retry_after_ms at least 0")


@dataclass(frozen=True, slots=True)
class Deed:
    """One line of the ledger: something was really done. ``undoes`` is the number of the deed it takes back."""

    number: int
    key: str
    request: Any
    undoes: int | None = None


class FakeEffector:
    """The other side. ``troubles`` are taken one a delivery, first to last; without any left, all goes well.

    ``dedups``: it acts once for a key and gives the same receipt again, as endpoints with idempotency keys do. Without,
    it does whatever it is told as often as it is told, so a test shows what the runtime alone prevents.
    """

    def __init__(self, *troubles: TroubleName | Trouble, dedups: bool = False) -> None:
        self.dedups = dedups
        self.ledger: list[Deed] = []
        self.deliveries: list[str] = []
        """The key of every request that a caller sent, arrived or not, in order."""
        self.probes: list[str] = []
        """The key of every probe, in order."""
        self._troubles: deque[Trouble] = deque()
        self._probe_troubles: deque[ProbeAnswer | Exception] = deque()
        self._late: list[tuple[str, Any, int | None]] = []
        self.trouble(*troubles)

    def trouble(self, *troubles: TroubleName | Trouble) -> None:
        """Script what befalls the next deliveries, after what is scripted already."""
        for trouble in troubles:
            one = trouble if isinstance(trouble, Trouble) else Trouble(trouble)
            self._troubles.extend([one] * one.times)

    def trouble_probe(self, *answers: ProbeAnswer | Exception) -> None:
        """Script what the next probes answer or raise instead of the truth: CannotTell, EffectNotSent."""
        self._probe_troubles.extend(answers)

    async def perform(self, key: str, request: Any) -> dict[str, Any]:
        """Do it, and give a receipt ``{"number": ..., "key": ..., "request": ...}``; or the next trouble."""
        return self._receive(key, request, None)

    async def compensate(self, key: str, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """Take back what the receipt is of, under a key of its own. Troubles befall this like any delivery."""
        return self._receive(key, receipt["request"], receipt["number"])

    async def probe(self, key: str) -> ProbeAnswer:
        """What the ledger says of this key: of a perform or of a compensate. Changes nothing."""
        self.probes.append(key)
        if self._probe_troubles:
            answer = self._probe_troubles.popleft()
            if isinstance(answer, Exception):
                raise answer
            return answer
        deeds = [deed for deed in self.ledger if deed.key == key]
        match deeds:
            case []:
                return DidNotHappen()
            case [deed]:
                return Happened(_receipt(deed))
            case _:
                return CannotTell(f"it was done {len(deeds)} times")

    def deliver_late(self) -> int:
        """Everything that was under way arrives now. How many requests that were."""
        late, self._late = self._late, []
        for key, request, undoes in late:
            self._act(key, request, undoes)
        return len(late)

    @property
    def effects(self) -> dict[str, int]:
        """How often each key was really acted on, compensations included."""
        return dict(Counter(deed.key for deed in self.ledger))

    @property
    def standing(self) -> dict[str, int]:
        """How often each key was acted on and not taken back."""
        undone = {deed.undoes for deed in self.ledger if deed.undoes is not None}
        return dict(Counter(deed.key for deed in self.ledger if deed.undoes is None and deed.number not in undone))

    def _receive(self, key: str, request: Any, undoes: int | None) -> dict[str, Any]:
        self.deliveries.append(key)
        trouble = self._troubles.popleft() if self._troubles else Trouble("none")
        match trouble.name:
            case "drop":
                raise EffectInDoubt(f"{key}: no reply in time")
            case "late":
                self._late.append((key, copy.deepcopy(request), undoes))
                raise EffectInDoubt(f"{key}: no reply in time")
            case "transient":
                raise EffectNotSent(f"{key}: connection refused")
            case "rate_limited":
                raise EffectNotSent(f"{key}: 429", retry_after_ms=trouble.retry_after_ms, is_up=True)
            case "permanent" if self._done(key) is None:
                raise EffectDeclined(f"{key}: declined", code="declined")
            case "crash_before_effect":
                raise Crash(f"the caller died before {key} was done")
            case _:
                receipt = self._act(key, request, undoes)
        match trouble.name:
            case "timeout_after_effect":
                raise EffectInDoubt(f"{key}: no reply in time")
            case "crash_after_effect":
                raise Crash(f"the caller died after {key} was done")
            case "bug_after_effect":
                raise KeyError("a bug behind the request")
            case "duplicate":
                return self._act(key, request, undoes)
            case _:
                return receipt

    def _act(self, key: str, request: Any, undoes: int | None) -> dict[str, Any]:
        before = self._done(key)
        if before is not None:
            if (before.request, before.undoes) != (request, undoes):
                raise EffectDeclined(f"{key} was used with another request", code="key_reused")
            return _receipt(before)
        self.ledger.append(Deed(len(self.ledger) + 1, key, copy.deepcopy(request), undoes))
        return _receipt(self.ledger[-1])

    def _done(self, key: str) -> Deed | None:
        """What it remembers of the key; nothing where it does not deduplicate."""
        return next((deed for deed in self.ledger if deed.key == key), None) if self.dedups else None


def _receipt(deed: Deed) -> dict[str, Any]:
    undoes = {} if deed.undoes is None else {"undoes": deed.undoes}
    return {"number": deed.number, "key": deed.key, "request": copy.deepcopy(deed.request), **undoes}

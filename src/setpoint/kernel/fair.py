"""Who may call a model next, when more want to than may: weighted fair by tokens, with a share kept free. Pure.

- Deficit round robin over flows (a tenant, a session, a run): each round a flow may spend its weight's worth of tokens,
  so a flow of long prompts gets as many tokens as one of short prompts, not as many calls.
- No banked credit: a flow that has nothing waiting starts from zero when it comes back.
- Slots: at most ``slots`` calls at once, of which ``reserved`` are for the interactive class alone, so no number of
  batch flows can hold up a person by more than what an interactive call takes.
- A bucket under the provider's own limit: tokens a minute are ours to pace, not the provider's to refuse.

After Shreedhar and Varghese, Efficient Fair Queuing using Deficit Round Robin (1995).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Final, Generic, Literal, TypeVar

ItemT = TypeVar("ItemT")
Class = Literal["interactive", "batch"]
QUANTUM_TOKENS: Final = 4_000
"""What a flow of weight 1 may spend a round: about one prompt, so that a round is one call for most flows."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens that may be spent: ``level`` as of ``at_ms``, refilled at ``per_minute`` up to ``capacity``."""

    capacity: int
    per_minute: int
    level: int
    at_ms: int

    def take(self, tokens: int, now_ms: int) -> tuple[Bucket, int]:
        """The bucket after taking them, and 0; or the bucket as it is now and the milliseconds to wait.

        A call larger than the bucket goes when the bucket is full: it could never go otherwise.
        """
        refilled = self.level + (now_ms - self.at_ms) * self.per_minute // 60_000
        now = replace(self, level=min(self.capacity, refilled), at_ms=now_ms)
        if refilled < self.capacity and now.level == self.level:
            now = self  # less than a token has come in: keep the time it counts from
        needed = min(tokens, self.capacity)
        if now.level >= needed:
            return replace(now, level=now.level - tokens), 0
        missing = needed - now.level
        return now, -(-missing * 60_000 // self.per_minute)


@dataclass(slots=True)
class _Flow(Generic[ItemT]):
    weight: int
    waiting: deque[tuple[int, ItemT]]
    deficit: int = 0


class FairQueue(Generic[ItemT]):
    """What waits for a slot. Deterministic: the same calls in the same order come out the same."""

    def __init__(self, slots: int, reserved: int = 0, quantum: int = QUANTUM_TOKENS) -> None:
        if not 0 <= reserved < slots:
            raise ValueError(f"{reserved} of {slots} slots are reserved; at least one must be left for the others")
        self.slots = slots
        self.reserved = reserved
        self._quantum = quantum
        self._flows: dict[Class, OrderedDict[str, _Flow[ItemT]]] = {
            "interactive": OrderedDict(),
            "batch": OrderedDict(),
        }
        self._held: dict[Class, int] = {"interactive": 0, "batch": 0}

    def put(self, item: ItemT, *, flow: str, tokens: int, kind: Class, weight: int = 1) -> None:
        """Let an item wait. ``tokens`` is what its call will cost, as estimated."""
        if tokens < 0 or weight < 1:
            raise ValueError(f"tokens {tokens} are at least 0, weight {weight} is at least 1")
        flows = self._flows[kind]
        if flow not in flows:
            flows[flow] = _Flow(weight, deque())
        flows[flow].weight = weight
        flows[flow].waiting.append((tokens, item))

    def take(self) -> tuple[Class, ItemT] | None:
        """The next item that may have a slot now, which it holds from here on; None when none may."""
        for kind in ("interactive", "batch"):
            if self._flows[kind] and self._has_room(kind):
                self._held[kind] += 1
                return kind, self._next(kind)
        return None

    def give_back(self, kind: Class) -> None:
        """A call has ended."""
        self._held[kind] -= 1

    def drop(self, item: ItemT) -> bool:
        """Forget an item that no longer waits; False when it is not there."""
        for flows in self._flows.values():
            for name, flow in flows.items():
                for entry in flow.waiting:
                    if entry[1] is item:
                        flow.waiting.remove(entry)
                        if not flow.waiting:
                            del flows[name]
                        return True
        return False

    def __len__(self) -> int:
        return sum(len(flow.waiting) for flows in self._flows.values() for flow in flows.values())

    def _has_room(self, kind: Class) -> bool:
        held = self._held["interactive"] + self._held["batch"]
        if kind == "interactive":
            return held < self.slots
        return held < self.slots and self._held["batch"] < self.slots - self.reserved

    def _next(self, kind: Class) -> ItemT:
        flows = self._flows[kind]
        while True:
            name, flow = next(iter(flows.items()))
            tokens, item = flow.waiting[0]
            if tokens <= flow.deficit or tokens == 0:
                flow.waiting.popleft()
                flow.deficit -= tokens
                if not flow.waiting:
                    del flows[name]  # no banked credit
                return item
            flow.deficit += self._quantum * flow.weight
            if tokens > flow.deficit or len(flows) > 1:
                flows.move_to_end(name)

"""What every store says about leases: who may claim one, and how its loss is told."""

from __future__ import annotations

from setpoint.adapters.stores.owner import is_provably_dead
from setpoint.kernel.errors import DuplicateEffect, HeadMoved, LeaseLost, StoreFault, UnknownTrajectory
from setpoint.ports.log import Head


def is_held(owner: str | None, expires_at_ms: int, now_ms: int) -> bool:
    """Whether the lease binds anyone now: it has an owner, has not expired, and the owner may be alive."""
    return owner is not None and expires_at_ms > now_ms and not is_provably_dead(owner)


def held_by_other(stream: str, owner: str, fence: int, left_ms: int) -> LeaseLost:
    return LeaseLost(
        f"{stream} is held by {owner} (fence {fence}) for another {left_ms} ms",
        hint="Wait until that worker finishes or its lease expires, or ask it to stop.",
    )


def superseded(stream: str, fence: int, present: int, owner: str | None) -> LeaseLost:
    state = f"fence {present}, held by {owner}" if owner else f"fence {present}, released"
    return LeaseLost(
        f"the lease on {stream} with fence {fence} is no longer valid ({state}); nothing was written",
        hint="This worker must stop; whoever claims the lease next goes on from the log.",
    )


def head_moved(stream: str, expected: Head, found: Head) -> HeadMoved:
    return HeadMoved(
        f"{stream} is at {found.seq} ({found.hash[:19]}), this append expected {expected.seq} "
        f"({expected.hash[:19]}); nothing was written",
        hint="Read the log again and decide from what it holds now.",
    )


def claimed_by_other(stream: str, key: str, holder: str) -> DuplicateEffect:
    return DuplicateEffect(
        f"the effect {key!r} that {stream} is about to make belongs to {holder}; nothing was written",
        key=key,
        holder=holder,
        hint=f"`setpoint describe {holder}` shows what became of it.",
    )


def unknown_stream(stream: str, where: str) -> UnknownTrajectory:
    return UnknownTrajectory(
        f"{where} holds no log named {stream!r}", hint="`setpoint get` lists what the store holds."
    )


def stream_exists(stream: str, where: str) -> StoreFault:
    return StoreFault(f"{where} already holds a log named {stream!r}", hint="Resume it, or start under another id.")


def closed(where: str) -> StoreFault:
    return StoreFault(f"{where} is closed; nothing was written", hint="Open the store again.")

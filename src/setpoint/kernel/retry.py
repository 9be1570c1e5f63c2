"""When to try again: pauses between attempts, a rate, a circuit breaker, and whether a repair is worth it. Pure.

Times and chance are passed in, so that a fold over the log decides the same again. Only an outcome that surely had no
effect is tried again by these rules; a doubt is settled first (``kernel/effects.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

from setpoint.kernel import limits
from setpoint.kernel.effects import Declined, Done, EffectOutcome, InDoubt, NotSent


def _require_whole(policy: object) -> None:
    for field in fields(policy):  # type: ignore[arg-type]
        if type(getattr(policy, field.name)) is not int:
            raise ValueError(f"{policy}: {field.name} is a whole number, and times are in ms")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how fast to send again. Whole numbers only, because it is part of a definition's digest.

    ``attempts`` counts the first one too. The pause after the n-th attempt is ``first_ms * factor**(n-1)``, at most
    ``max_ms``; of it, up to ``jitter`` thousandths are taken off by chance, so that many who failed together do not
    come back together.
    """

    attempts: int = limits.EFFECT_ATTEMPTS_MAX
    first_ms: int = limits.EFFECT_PAUSE_MS_FIRST
    factor: int = 2
    max_ms: int = limits.EFFECT_PAUSE_MS_MAX
    jitter: int = 500

    def __post_init__(self) -> None:
        _require_whole(self)
        if self.attempts < 1 or self.first_ms < 0 or self.factor < 1 or self.max_ms < 0:
            raise ValueError(f"{self}: attempts and factor are at least 1, pauses at least 0 ms")
        if not 0 <= self.jitter <= 1000:
            raise ValueError(f"jitter is {self.jitter} thousandths; it is between 0 and 1000")

    def pause_ms(self, attempts_made: int, chance: float) -> int:
        """The pause after so many attempts. ``chance`` is at least 0 and below 1."""
        if attempts_made < 1 or not 0 <= chance < 1:
            raise ValueError(f"attempts made is {attempts_made}, at least 1; chance is {chance}, in [0, 1)")
        pause = self.first_ms
        for _ in range(attempts_made - 1):
            if pause >= self.max_ms or self.factor == 1 or pause == 0:
                break
            pause *= self.factor
        pause = min(pause, self.max_ms)
        return pause - int(pause * self.jitter * chance) // 1000

    def next_pause_ms(self, outcome: EffectOutcome, attempts_made: int, chance: float) -> int | None:
        """The pause before the next attempt, None when there is none: only what was surely not sent is sent again.

        A pause that the other side asked for is never shortened, not even by ``max_ms``.
        """
        if not isinstance(outcome, NotSent) or attempts_made >= self.attempts:
            return None
        return max(self.pause_ms(attempts_made, chance), outcome.retry_after_ms or 0)


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """At most ``calls`` in any ``per_ms``."""

    calls: int
    per_ms: int

    def __post_init__(self) -> None:
        _require_whole(self)
        if not 1 <= self.calls <= limits.RATE_CALLS_MAX or self.per_ms < 1:
            raise ValueError(
                f"{self}: calls are between 1 and {limits.RATE_CALLS_MAX} (write a higher rate as fewer calls in a "
                "shorter time), per_ms is at least 1"
            )

    def wait_ms(self, sent_at_ms: Sequence[int], now_ms: int) -> int:
        """How long to wait before one more; 0 when it may go now. ``sent_at_ms``: times of earlier ones, ascending."""
        if len(sent_at_ms) < self.calls:
            return 0
        return max(0, sent_at_ms[-self.calls] + self.per_ms - now_ms)

    def kept(self, sent_at_ms: Sequence[int], now_ms: int) -> tuple[int, ...]:
        """The times to remember after sending now: never more than ``calls``."""
        return (*sent_at_ms, now_ms)[-self.calls :]


# A circuit breaker for each dependency

CIRCUIT_OPEN: Final = "ERR_CIRCUIT_OPEN"
BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class CircuitOpen:
    """A refusal: the dependency failed and is left alone for ``left_ms`` more. The same for every wording of a call."""

    dependency: str
    left_ms: int
    failed: int
    code: Literal["ERR_CIRCUIT_OPEN"] = CIRCUIT_OPEN

    @property
    def message(self) -> str:
        return (
            f"{self.code}: {self.dependency} failed {self.failed} times in a row and is not called for another "
            f"{self.left_ms} ms; other wording does not change that"
        )


def is_transport_failure(outcome: EffectOutcome) -> bool:
    """Whether it speaks against the dependency itself. An answer never does, not even a no or a rate limit."""
    match outcome:
        case Done() | Declined():
            return False
        case NotSent(is_up=is_up) | InDoubt(is_up=is_up):
            return not is_up


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of one dependency, a fold over admissions and outcomes.

    closed: calls go. After ``failures`` transport failures in a row it opens: nothing goes for ``open_ms``. Then it is
    half open: one call goes as a probe. Its success closes the breaker, its failure opens it anew. A probe that never
    reports (its process died) gives way to another after ``open_ms``.
    """

    dependency: str
    failures: int = limits.BREAKER_FAILURES
    open_ms: int = limits.BREAKER_OPEN_MS
    failed: int = 0  # transport failures in a row
    opened_at_ms: int | None = None
    probing_at_ms: int | None = None

    def state(self, now_ms: int) -> BreakerState:
        if self.opened_at_ms is None:
            return "closed"
        return "open" if now_ms < self.opened_at_ms + self.open_ms else "half_open"

    def admit(self, now_ms: int) -> Breaker | CircuitOpen:
        """The breaker after letting a call go, or the refusal."""
        match self.state(now_ms):
            case "closed":
                return self
            case "open":
                assert self.opened_at_ms is not None
                return CircuitOpen(self.dependency, self.opened_at_ms + self.open_ms - now_ms, self.failed)
            case "half_open":
                if self.probing_at_ms is not None and now_ms < self.probing_at_ms + self.open_ms:
                    return CircuitOpen(self.dependency, self.probing_at_ms + self.open_ms - now_ms, self.failed)
                return replace(self, probing_at_ms=now_ms)

    def after(self, outcome: EffectOutcome, now_ms: int) -> Breaker:
        """The breaker after an outcome. One that was under way when it opened is not heard until it is half open."""
        if self.state(now_ms) == "open":
            return self
        if not is_transport_failure(outcome):
            return replace(self, failed=0, opened_at_ms=None, probing_at_ms=None)
        failed = self.failed + 1
        opens = self.opened_at_ms is not None or failed >= self.failures
        return replace(self, failed=failed, opened_at_ms=now_ms if opens else None, probing_at_ms=None)


# Whether to repair or to start over


def repair_threshold(repair: float, spent: float, restart: float) -> float:
    """p*, the chance of success above which a repair is worth it: c_r / (U + R).

    ``repair`` is what one attempt costs, ``spent`` (U) what unwinding throws away, ``restart`` (R) what doing it anew
    costs; all in one unit, seconds or money.
    """
    if repair < 0 or spent < 0 or restart < 0 or spent + restart == 0:
        raise ValueError(f"costs {repair}, {spent}, {restart} are at least 0, and starting over costs something")
    return repair / (spent + restart)


def repair_cost(chance: float, repair: float, spent: float, restart: float) -> float:
    """The expected cost of trying a repair first: c_r + (1 - p)(U + R)."""
    if not 0 <= chance <= 1:
        raise ValueError(f"the chance is {chance}; it is between 0 and 1")
    return repair + (1 - chance) * (spent + restart)


def is_worth_repairing(chance: float, repair: float, spent: float, restart: float) -> bool:
    """Whether trying a repair first costs less than starting over: p > p*."""
    return chance > repair_threshold(repair, spent, restart)

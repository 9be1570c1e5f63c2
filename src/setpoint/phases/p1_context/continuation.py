"""May another turn start? Turns, tokens, money and wall clock, with the projected call, before any compute is used."""

from __future__ import annotations

from dataclasses import dataclass

from setpoint.kernel import limits
from setpoint.kernel.budget import Stage
from setpoint.kernel.contract import Budget
from setpoint.kernel.record import Record
from setpoint.ports.proposer import RouteLimits


@dataclass(frozen=True, slots=True)
class Usage4:
    """What is used of the four ceilings, in thousandths of each."""

    turns: int
    tokens: int
    usd: int
    wall: int

    @property
    def rho(self) -> int:
        """The largest: the binding dimension."""
        return max(self.turns, self.tokens, self.usd, self.wall)

    @property
    def binding(self) -> str:
        return max(("turns", "tokens", "usd", "wall"), key=lambda name: getattr(self, name))


@dataclass(frozen=True, slots=True)
class Go:
    stage: Stage
    used: Usage4


@dataclass(frozen=True, slots=True)
class Stop:
    """``dimension`` is the ceiling that binds: turns | tokens | usd | wall."""

    dimension: str
    message: str


@dataclass(frozen=True, slots=True)
class Projected:
    """The next call at its expected worst: never less than the newest call cost."""

    tokens: int
    usd_micros: int


def project(record: Record, prompt_tokens: int, route: RouteLimits) -> Projected:
    """What the next call may cost: the newest metered call plus the growth of the prompt, priced by the route.

    Before the first call there is only the estimate of the prompt.
    """
    last_in, last_out, last_usd = record.last_call
    tokens_in = last_in + max(0, prompt_tokens - record.prompt_tokens) if record.spent.model_calls else prompt_tokens
    usd = last_usd
    if route.usd_micros_per_mtok_in is not None and route.usd_micros_per_mtok_out is not None:
        price_in = tokens_in * route.usd_micros_per_mtok_in
        price_out = (last_out or route.output_tokens) * route.usd_micros_per_mtok_out
        usd = max(usd, -(-(price_in + price_out) // 1_000_000))
    return Projected(tokens_in + last_out, usd)


def usage(record: Record, budget: Budget, elapsed_ms: int) -> Usage4:
    """Used shares in thousandths. A ceiling of 0 counts as used up."""
    spent = record.spent

    def share(used: int, ceiling: int) -> int:
        return used * 1000 // ceiling if ceiling > 0 else 1000

    return Usage4(
        share(record.turn, budget.turns),
        share(spent.tokens, budget.tokens),
        share(spent.usd_micros, budget.usd_micros) if spent.usd_micros else 0,
        share(elapsed_ms, budget.wall_ms),
    )


def over_spend(record: Record, budget: Budget, projected: Projected) -> Stop | None:
    """The ceiling of tokens or money that the projected call would break; None when it fits."""
    spent = record.spent
    if spent.tokens + projected.tokens > budget.tokens:
        return Stop(
            "tokens",
            f"{spent.tokens} tokens are spent and the next call needs about {projected.tokens}; the ceiling is "
            f"{budget.tokens}",
        )
    if spent.usd_micros + projected.usd_micros > budget.usd_micros:
        return Stop(
            "usd",
            f"${spent.usd_micros / 1e6:.4f} are spent and the next call costs about "
            f"${projected.usd_micros / 1e6:.4f}; the ceiling is ${budget.usd_micros / 1e6:.4f}",
        )
    return None


def may_continue(record: Record, budget: Budget, elapsed_ms: int, projected: Projected) -> Go | Stop:
    """Whether the next model call may be made at all. Pure."""
    if record.turn >= budget.turns:
        return Stop("turns", f"{record.turn} of {budget.turns} turns are used")
    if elapsed_ms >= budget.wall_ms:
        return Stop("wall", f"{elapsed_ms / 1000:.1f} s of {budget.wall_ms / 1000:.1f} s are used")
    stop = over_spend(record, budget, projected)
    if stop is not None:
        return stop
    used = usage(record, budget, elapsed_ms)
    if used.rho >= limits.STAGE_RESTRICT:
        return Go("restrict", used)
    if used.rho >= limits.STAGE_STEER:
        return Go("steer", used)
    return Go("nominal", used)

"""Effects outside the workspace: their classes, what one dispatch can come to, and how a doubt is settled. Pure.

- The class of a capability comes from its author; a hint from elsewhere may only raise it.
- One dispatch has one of four outcomes. Only ``Declined`` and ``NotSent`` say that there is no effect, so whoever makes
  one must know it: everything else that goes wrong with a mutation is ``InDoubt``.
- A doubt is settled by a probe, by the other side's memory of the key, or by a person; never by a guess (law L6).

When to try again is in ``kernel/retry.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, assert_never, get_args

from setpoint.kernel import limits
from setpoint.kernel.errors import Effect, Fault
from setpoint.kernel.spelling import encodable

EffectClass = Literal["pure", "read", "reversible", "keyed", "compensable", "irreversible"]
"""pure: no world at all. read: looks only. reversible: the same capability can set it back. keyed: the other side acts
once for a key, however often it is told. compensable: a registered compensator makes up for it. irreversible: nothing
does."""
EFFECT_CLASSES: Final[tuple[EffectClass, ...]] = get_args(EffectClass)
"""From harmless to final; the position is the rank."""


def raises_only(author: EffectClass, hint: EffectClass | None) -> EffectClass:
    """The class that holds: the author's, or the hint's (a remote server's, a caller's) where that is graver.

    ValueError for a word that is no class: an unknown tag is never read as a harmless one.
    """
    for word in (author, *(() if hint is None else (hint,))):
        if word not in EFFECT_CLASSES:
            raise ValueError(f"{word!r} is no effect class; it is one of {', '.join(EFFECT_CLASSES)}")
    if hint is None or EFFECT_CLASSES.index(hint) <= EFFECT_CLASSES.index(author):
        return author
    return hint


def is_mutation(effect: EffectClass) -> bool:
    """Whether sending it twice could do something twice."""
    return effect not in ("pure", "read")


# What one dispatch came to


@dataclass(frozen=True, slots=True)
class Done:
    """The other side did it and said so; ``result`` is its receipt."""

    result: Any


@dataclass(frozen=True, slots=True)
class Declined:
    """The other side answered no: there is no effect, and the same request would get the same answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """Surely no effect: no connection, a rate limit, an outage announced before processing. It may be sent again.

    ``retry_after_ms`` is the pause the other side asked for. ``is_up``: it answered, so a breaker does not count this.
    """

    reason: str
    retry_after_ms: int | None = None
    is_up: bool = False


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The effect may have happened: timeout, reset after sending, cut reply, 5xx. ``is_up`` as in NotSent."""

    reason: str
    is_up: bool = False


EffectOutcome = Done | Declined | NotSent | InDoubt


# The same, as a capability raises it


class EffectFault(Fault):
    """A capability reports that its effect did not go as asked. ``effect`` says what is known of it."""

    known: ClassVar[Effect] = "in_doubt"

    def __init__(self, message: str, *, hint: str | None = None, is_up: bool = False) -> None:
        super().__init__(message, effect=self.known, hint=hint)
        self.is_up = is_up


class EffectDeclined(EffectFault):
    """The other side answered no: no effect, final. ``code`` is its own word for why, such as ``402``."""

    known = "settled"

    def __init__(self, message: str, *, code: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint, is_up=True)
        self.code = code


class EffectNotSent(EffectFault):
    """Surely no effect; it may be sent again, at the earliest after ``retry_after_ms`` where that is given."""

    known = "not_sent"

    def __init__(
        self, message: str, *, retry_after_ms: int | None = None, hint: str | None = None, is_up: bool = False
    ) -> None:
        super().__init__(message, hint=hint, is_up=is_up)
        self.retry_after_ms = retry_after_ms


class EffectUnready(EffectNotSent):
    """What the capability needs is not there, so nothing was sent; trying again is no use until a person has seen to
    it. The run pauses."""


class ResultUnfit(EffectFault):
    """The effect was made, and what its capability gave as the result is not what it declares. Never sent again.

    ``kept`` is what could be kept of the result as plain JSON, None when nothing could.
    """

    known = "settled"

    def __init__(self, message: str, kept: Any = None) -> None:
        super().__init__(message, is_up=True)
        self.kept = kept


class EffectInDoubt(EffectFault):
    """The effect may have happened. It is settled before anything else is done with what it touches."""

    known = "in_doubt"
    exit_code = 16


def outcome_of(error: Exception, effect: EffectClass) -> EffectOutcome:
    """What an exception out of a capability of that class says of its effect.

    Only this module's faults are believed. Any other exception (a bug behind the request, a library's own error) leaves
    a mutation in doubt, whatever it calls itself: a ``Fault`` from elsewhere says ``not_sent`` by default.
    """
    match error:
        case EffectDeclined():
            return Declined(said(error.message))
        case EffectNotSent():
            return NotSent(said(error.message), error.retry_after_ms, error.is_up)
        case EffectInDoubt() if is_mutation(effect):
            return InDoubt(said(error.message), error.is_up)
        case _ if is_mutation(effect):
            return InDoubt(said(f"{type(error).__name__}: {error}"))
        case _:
            return NotSent(said(f"{type(error).__name__}: {error}"))


def said(words: str) -> str:
    """Words of somebody else's code, as an event can hold them: of a bounded length, and without half surrogates."""
    return encodable(words[: limits.REASON_CHARS_MAX])


# What a read-only look at the world says


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect is there; ``result`` is its receipt as far as the other side still has it."""

    result: Any


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The state is as it was before."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """It looked and found neither: a part of the effect, or something that another may have done."""

    reason: str


ProbeAnswer = Happened | DidNotHappen | CannotTell
"""A probe that could not look at all raises EffectNotSent instead: it is asked again."""


# Settlement

AttemptState = Literal["not_sent", "settled", "in_doubt"]
"""not_sent: no intent, or an outcome that says so. settled: done or declined. in_doubt: an intent and nothing else, or
an outcome in doubt."""


@dataclass(frozen=True, slots=True)
class Stands:
    """There is nothing to settle: the recorded result holds."""


@dataclass(frozen=True, slots=True)
class Reconstructed:
    """Done, as a probe found; recorded as reconstructed, because no reply of the dispatch said it."""

    result: Any


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the same request with the same key."""


@dataclass(frozen=True, slots=True)
class ProbeLater:
    """The first sending may still arrive: probe again when it can no longer (``lease_bound_ms``)."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody but a person can say. Nothing more is done with what it touches."""

    reason: str


Settlement = Stands | Reconstructed | Resend | ProbeLater | Unknown


def settle(
    state: AttemptState, answer: ProbeAnswer | None, effect: EffectClass, *, dedups: bool, is_in_flight: bool
) -> Settlement:
    """What to do about an attempt. Total: every combination has exactly one answer.

    ``answer`` is None where the capability has no probe. ``dedups``: the other side acts once for a key; the class
    ``keyed`` implies it. ``is_in_flight``: less time has passed since sending than ``lease_bound_ms`` allows for, so
    "it did not happen" may only mean "not yet". A deduplicating side may be told again at once even then.
    """
    if state == "settled":
        return Stands()
    if state == "not_sent" or not is_mutation(effect):
        return Resend()
    remembers = dedups or effect == "keyed"
    match answer:
        case Happened(result=result):
            return Reconstructed(result)
        case DidNotHappen():
            return Resend() if remembers or not is_in_flight else ProbeLater()
        case CannotTell(reason=reason):
            # Also where the other side remembers keys: what it half did under this one, only a person can judge.
            return Unknown(f"the probe cannot tell: {reason}")
        case None if remembers:
            return Resend()
        case None:
            return Unknown("there is no probe, and the other side does not remember keys")
        case _:
            assert_never(answer)


def of_the_effect(outcome: EffectOutcome, *, is_earlier_in_doubt: bool, was_in_flight: bool) -> EffectOutcome:
    """What the outcome of one attempt says of the effect as a whole, earlier attempts with the same key included.

    ``is_earlier_in_doubt``: one was sent again because the other side remembers keys, and no probe has found the state
    as before for good. Then a later "not sent" says nothing of it. ``was_in_flight``: it could still arrive when this
    attempt was sent. Then a no to this one is not final: the earlier one may have arrived after it. The pause and the
    breaker go by the attempt's own outcome.
    """
    match outcome:
        case NotSent() if is_earlier_in_doubt:
            return InDoubt(f"an earlier attempt is in doubt; the last was not sent: {outcome.reason}", outcome.is_up)
        case Declined() if is_earlier_in_doubt and was_in_flight:
            return InDoubt(f"an earlier attempt may still arrive; the last was declined: {outcome.reason}", is_up=True)
        case _:
            return outcome


def worst_execution_ms(once_ms: int, polls: int, poll_ms: int) -> int:
    """The longest the other side may work on one request: the work, and each time it looks whether a part is ready."""
    return once_ms + polls * poll_ms


def lease_bound_ms(timeout_ms: int, skew_ms: int, worst_ms: int) -> int:
    """How long a request may still take effect after it was sent, by our own clock.

    A lease on what it touches outlives it only when it is longer than this: the timeout we wait for, the difference
    between the clocks, the worst execution of a request that arrived in the last moment.
    """
    for name, value in {"timeout": timeout_ms, "skew": skew_ms, "worst execution": worst_ms}.items():
        if value < 0:
            raise ValueError(f"{name} is {value} ms; it is at least 0")
    return timeout_ms + skew_ms + worst_ms

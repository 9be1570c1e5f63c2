"""Does the way the engine makes a call keep its promises, whatever happens in between? A model checker over one call.

Every state of one call is searched: what is durable (intent, claim, ticket), what is lost with the process, what is on
the wire, and what the other side has done. The world may at any moment crash the process, lose or
delay a request or its reply, let a rival run propose the same effect, change what would be sent, let people decide,
or let an approval go stale. The rule for doubts is not modelled but called: ``effects.settle``.

Three properties: nothing is sent that people, where they must be asked, did not approve as it is; the effect is made
at most once for its key; and a run that took a no for final has made nothing. What breaks one is shown by a shortest
run of events. ``without`` takes a part of the protocol away; that the search then finds a counter-example shows that
it can.

Beyond the model: more than two sendings, clocks that lie beyond the skew, an author's probe or class that is not true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from setpoint.kernel.effects import (
    DidNotHappen,
    EffectClass,
    Happened,
    ProbeLater,
    Reconstructed,
    Resend,
    is_mutation,
    settle,
)
from setpoint.kernel.flow import Approval, Call, Definition, walk

Part = Literal["gate", "binding", "claim", "intent", "settle", "wait", "doubt"]
"""What can be taken away: asking at all; comparing what was approved with what is sent; the claim on the key; writing
the intent first; settling before sending again; waiting out what may still arrive; remembering, when a later attempt is
declined, that an earlier one may still count."""
PARTS: Final[tuple[Part, ...]] = ("gate", "binding", "claim", "intent", "settle", "wait", "doubt")
SENDINGS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class CallModel:
    """What of a call decides how it may go."""

    effect: EffectClass
    has_gate: bool
    has_key: bool
    has_probe: bool
    dedups: bool


class State(NamedTuple):
    """One state of a call. The fields of the first group survive a crash."""

    intent: str = ""  # "" | queued | free (settled: not there) | unknown | done | declined
    claim: str = ""  # "" | ours | theirs
    ticket: str = ""  # "" | asked | granted | stale
    ticket_for: int = 0  # the version of the arguments that people saw
    sent_for: int = 0  # the version in the intent
    sendings: int = 0
    is_doubtful: bool = False  # an earlier attempt may still count
    # Of the process
    doing: str = ""  # "" | about to send | waiting
    # Of the world
    now: int = 0  # the version of what would be sent
    wire: int = 0  # requests that may still arrive
    is_early: bool = False  # the last sending may still arrive
    made: int = 0
    is_ungated: bool = False  # something went out that nobody approved as it was
    is_denied: bool = False  # it was made, and the run believes that it was declined


@dataclass(frozen=True, slots=True)
class Verdict:
    """``broken`` is the property that does not hold, ``events`` a shortest way to break it; empty when both hold."""

    states: int
    broken: str = ""
    events: tuple[str, ...] = ()


def check_protocol(definition: Definition) -> dict[str, Verdict]:
    """The verdict for each call of the definition that changes anything, by its path."""
    nodes = tuple(walk(definition.body, definition.name))
    ahead = {node.of for _, node in nodes if isinstance(node, Approval) and node.of}
    return {
        path: check_call(model_of(node, is_approved_ahead=path in ahead))
        for path, node in nodes
        if isinstance(node, Call) and is_mutation(node.capability.effect)
    }


def model_of(node: Call, *, is_approved_ahead: bool) -> CallModel:
    contract = node.capability
    return CallModel(
        contract.effect,
        node.approval is not None or is_approved_ahead,
        contract.has_key,
        contract.has_probe,
        contract.dedups or contract.effect == "keyed",
    )


@lru_cache(maxsize=256)
def check_call(model: CallModel, without: frozenset[Part] = frozenset()) -> Verdict:
    """Search every state; the first that breaks a property is one that the fewest events lead to."""
    start = State()
    came: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        broken = _broken(state)
        if broken:
            return Verdict(len(came), broken, _events(came, state))
        for event, after in (*_process(state, model, without), *_world(state, model, without)):
            if after not in came:
                came[after] = (state, event)
                queue.append(after)
    return Verdict(len(came))


def _broken(state: State) -> str:
    if state.is_ungated:
        return "sent without its approval"
    if state.made > 1:
        return "made twice"
    return "made and taken for declined" if state.is_denied else ""


def _events(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    found: list[str] = []
    while (step := came[state]) is not None:
        state, event = step
        found.append(event)
    return tuple(reversed(found))


Steps = Iterable[tuple[str, State]]


# What the engine does (engine/runs/calls.py)


def _process(state: State, model: CallModel, without: frozenset[Part]) -> Iterator[tuple[str, State]]:
    match state.intent, state.doing:
        case (("" | "free"), ""):
            yield from _begin(state, model, without)
        case _, "about to send":
            yield "the request goes out", _sent(state, model)
        case "queued", "":  # after a crash, or when no reply came
            yield from _settled(state, model, without)
        case _:
            pass


def _begin(state: State, model: CallModel, without: frozenset[Part]) -> Steps:
    if state.sendings == SENDINGS_MAX:
        return
    again = state.intent == "free"
    version = state.sent_for if again else state.now  # what is sent again is what was sent
    if model.has_gate and not again and "gate" not in without:
        if state.ticket in ("", "stale") or (state.ticket_for != version and "binding" not in without):
            if state.ticket != "asked" or state.ticket_for != version:
                yield "people are asked", state._replace(ticket="asked", ticket_for=version)
            return
        if state.ticket != "granted":
            return
    if state.claim == "theirs" and "claim" not in without:
        yield "the key is another run's: its result is taken", state._replace(intent="done")
        return
    about = state._replace(doing="about to send", sent_for=version)
    if "intent" in without:
        yield "the engine prepares to send", about
    else:
        claim = state.claim if "claim" in without else "ours"
        yield "intent and claim are durable", about._replace(intent="queued", claim=claim)


def _sent(state: State, model: CallModel) -> State:
    approved = not model.has_gate or (state.ticket_for == state.sent_for and state.ticket in ("granted", "stale"))
    return state._replace(
        doing="waiting",
        wire=state.wire + 1,
        sendings=state.sendings + 1,
        is_doubtful=state.is_doubtful and state.is_early,  # what can no longer arrive has not
        is_early=True,
        is_ungated=not approved,
    )


def _settled(state: State, model: CallModel, without: frozenset[Part]) -> Steps:
    if "settle" in without:
        yield "it is taken for not sent", state._replace(intent="free")
        return
    answer = None
    if model.has_probe:
        answer = Happened(None) if state.made else DidNotHappen()
    in_flight = state.is_early and "wait" not in without
    match settle("in_doubt", answer, model.effect, dedups=model.dedups, is_in_flight=in_flight):
        case Reconstructed():
            yield "the probe finds it", state._replace(intent="done")
        case Resend():
            is_certain = model.has_probe and not in_flight
            yield "settled: it may be sent again", state._replace(intent="free", is_doubtful=not is_certain)
        case ProbeLater():
            pass  # it waits until nothing may still arrive
        case _:
            yield "nobody can tell: a person is asked", state._replace(intent="unknown")


# What happens around it


def _world(state: State, model: CallModel, without: frozenset[Part]) -> Iterator[tuple[str, State]]:
    if state.doing:
        yield "the process crashes", _crashed(state)
    if state.doing == "waiting":
        yield "no reply comes in time", state._replace(doing="")
    if state.wire:
        made = state.made if model.dedups and state.made else state.made + 1
        denied = state.intent == "declined" and made > state.made
        arrived = state._replace(wire=state.wire - 1, made=made, is_denied=denied)
        yield "a request arrives, its reply is lost", arrived
        if state.doing == "waiting":
            yield "a request arrives, its reply comes", arrived._replace(doing="", intent="done")
            if not state.made:
                yield from _declined(state, without)
        yield "a request is lost", state._replace(wire=state.wire - 1)
    elif state.is_early:
        yield "nothing may still arrive", state._replace(is_early=False)
    if state.intent == "unknown" and not state.is_early:
        yield "a person looks", state._replace(intent="done" if state.made else "free")
    if state.ticket == "asked":
        yield "people say yes", state._replace(ticket="granted")
    if state.ticket in ("asked", "granted") and not state.intent and not state.doing:
        yield "the approval expires or is withdrawn", state._replace(ticket="stale")
    if state.now == 0 and not state.intent and not state.doing:
        yield "the arguments change", state._replace(now=1)
    if model.has_key and state.claim != "theirs" and (not state.claim or "claim" in without) and state.made < 2:
        # The same effect in other words: another run, with its own gate, under the same business key.
        made = state.made if model.dedups and state.made else state.made + 1
        yield "another run makes the same effect", state._replace(claim="theirs", made=made)


def _declined(state: State, without: frozenset[Part]) -> Steps:
    """The other side says no to the newest request. That is final when no earlier one may arrive after it."""
    left = state._replace(wire=state.wire - 1, doing="")
    if state.is_doubtful and "doubt" not in without:
        yield "a request is declined, an earlier one may count", left
    else:
        yield "a request is declined", left._replace(intent="declined", claim="")


def _crashed(state: State) -> State:
    """Only what is durable is left; a request that is on the wire still is."""
    return state._replace(doing="")

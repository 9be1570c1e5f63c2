"""What an agent may do now, and whether one action it asks for is done: pure functions of records and declarations.

``catalogue`` lists every action of an agent with its schema and, for those that are not legal in this state, why not.
``rule`` applies four checks in a fixed order, the first no wins: schema, authority, state, budget. What an action rests
on is named by the catalogue's version; one that was chosen on another version is refused (R043, R045).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from setpoint.kernel.keys import digest
from setpoint.kernel.proposal import Call
from setpoint.kernel.session_record import SessionRecord

ActionKind = Literal["start_workflow", "provide_input", "choose", "answer_user", "ask_operator", "cancel", "complete"]
ENDING: Final = frozenset({"answer_user", "complete", "ask_operator"})
"""Actions that end the turn."""
NAME_CHARS_MAX: Final = 64
"""What the providers' wire formats allow for a tool."""
TEXT_CHARS_MAX: Final = 8_000
"""An answer to a person, about 1,300 words."""
OPEN_RUNS_MAX: Final = 8
"""Runs one session may have open at a time: each is a line of every prompt."""

Schema = dict[str, Any]


class AgentBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceilings of an agent. ``turns`` (model calls) and ``starts`` (runs) hold for one message, the others for the
    whole session, so that no number of messages costs more."""

    turns: int = 8
    starts: int = 4
    tokens: int = 500_000
    usd_micros: int = 5_000_000


class Startable(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow the agent may start. ``schema`` is of what the model says; what the session says is filled in."""

    workflow: str
    definition: str
    schema: Schema
    description: str = ""
    scopes: tuple[str, ...] = ()


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal of an allowed workflow that the principal may send. ``choices`` when its payload is one of a list."""

    workflow: str
    signal: str
    schema: Schema
    choices: tuple[Any, ...] = ()
    scopes: tuple[str, ...] = ()


class AgentTerms(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as data: what it is told and what it may do. It holds no handle to anything (R037)."""

    name: str
    instructions: str
    workflows: tuple[Startable, ...]
    signals: tuple[Signal, ...] = ()
    may_ask: bool = True
    budget: AgentBudget = AgentBudget()

    @property
    def digest(self) -> str:
        document = msgspec.to_builtins(self)
        return digest(msgspec.json.encode(document, order="sorted").decode())


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """As much of an open run as the agent, and a decision of its, may rest on."""

    run_id: str
    workflow: str
    state: str
    signals: tuple[str, ...] = ()  # it waits for
    waits: tuple[str, ...] = ()  # for people, time, other runs
    message: str = ""
    is_cancelling: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One thing an agent could do. ``form`` is its schema in any state, ``schema`` the one of this state."""

    kind: ActionKind
    name: str
    description: str
    form: Schema
    schema: Schema
    target: str = ""  # the workflow or signal
    definition: str = ""
    scopes: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """``version`` names the state: of the session, and of the runs that are open."""

    version: str
    actions: tuple[Action, ...]

    def named(self, name: str) -> Action | None:
        return next((action for action in self.actions if action.name == name), None)


@dataclass(frozen=True, slots=True)
class Denied:
    """A no: recorded, shown to the model, without any effect."""

    gate: Literal["schema", "authority", "state", "budget"]
    reason: str
    message: str
    pointer: str = ""


def catalogue(
    record: SessionRecord, runs: Sequence[RunView], terms: AgentTerms, *, held: frozenset[str] | None = None
) -> Catalogue:
    """Every action of the agent in this state, in canonical order. ``held`` scopes default to the session's."""
    ordered = sorted(runs, key=lambda run: run.run_id)
    actions: list[Action] = [_answer_user(), _complete(ordered)]
    actions += [_start(one, record) for one in terms.workflows]
    actions += [_input(one, ordered) for one in terms.signals]
    if terms.workflows:
        actions.append(_cancel(ordered))
    if terms.may_ask:
        actions.append(_ask(record))
    actions.sort(key=lambda action: action.name)
    return Catalogue(_version(record, ordered), tuple(actions))


def offered(found: Catalogue, scopes: Sequence[str]) -> tuple[Action, ...]:
    """Those that are legal now for who holds these scopes."""
    return tuple(action for action in found.actions if not action.why_not and set(action.scopes) <= set(scopes))


def _version(record: SessionRecord, runs: Sequence[RunView]) -> str:
    return f"{record.version}.{digest([msgspec.to_builtins(run) for run in runs])[7:15]}"


def action_name(kind: str, *targets: str) -> str:
    """``start_workflow_refund``: letters, digits, _ and -, at most 64; a longer one ends in a digest."""
    name = "_".join((kind, *targets))
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)
    if len(plain) <= NAME_CHARS_MAX and plain == name:
        return plain
    return f"{plain[: NAME_CHARS_MAX - 9]}_{digest(name)[7:15]}"


# The actions


def _object(properties: Schema, *, required: Sequence[str] | None = None) -> Schema:
    needed = list(properties) if required is None else list(required)
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


_TEXT: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX}
_RUN: Final[Schema] = {"type": "string"}


def _one_of(runs: Sequence[RunView]) -> Schema:
    return {"type": "string", "enum": [run.run_id for run in runs]}


def _answer_user() -> Action:
    schema = _object({"text": _TEXT})
    words = "Say this to the user and end the turn. Say only what observations or the session state."
    return Action("answer_user", "answer_user", words, schema, schema)


def _complete(runs: Sequence[RunView]) -> Action:
    schema = _object({"text": _TEXT})
    words = "The request is dealt with: say this to the user and end the turn."
    names = ", ".join(run.run_id for run in runs)
    why_not = f"{names} is still open; use answer_user, or cancel" if runs else ""
    return Action("complete", "complete", words, schema, schema, why_not=why_not)


def _ask(record: SessionRecord) -> Action:
    schema = _object({"question": _TEXT})
    words = "Ask a person of the operator's staff and end the turn until they answer."
    why_not = "a question is waiting for an answer already" if record.question is not None else ""
    return Action("ask_operator", "ask_operator", words, schema, schema, why_not=why_not)


def _start(one: Startable, record: SessionRecord) -> Action:
    words = one.description or f"Start the workflow {one.workflow}."
    full = len(record.runs) >= OPEN_RUNS_MAX
    why_not = f"{len(record.runs)} runs are open, and a session may have {OPEN_RUNS_MAX}" if full else ""
    return Action(
        "start_workflow",
        action_name("start_workflow", one.workflow),
        words,
        one.schema,
        one.schema,
        one.workflow,
        one.definition,
        one.scopes,
        why_not,
    )


def _input(one: Signal, runs: Sequence[RunView]) -> Action:
    waiting = [run for run in runs if run.workflow == one.workflow and one.signal in run.signals]
    kind: ActionKind = "choose" if one.choices else "provide_input"
    field = "choice" if one.choices else "payload"
    payload = {name: value for name, value in one.schema.items() if name != "$defs"}
    extra = {"$defs": one.schema["$defs"]} if "$defs" in one.schema else {}
    words = f"{'Choose' if one.choices else 'Give'} {one.signal} for a run of {one.workflow} that waits for it."
    return Action(
        kind,
        action_name(kind, one.workflow, one.signal),
        words,
        _object({"run": _RUN, field: payload}) | extra,
        _object({"run": _one_of(waiting), field: payload}) | extra,
        one.signal,
        scopes=one.scopes,
        why_not="" if waiting else f"no run of {one.workflow} waits for {one.signal}",
    )


def _cancel(runs: Sequence[RunView]) -> Action:
    open_runs = [run for run in runs if not run.is_cancelling]
    words = "Cancel an open run; what it did is taken back as far as it can be."
    return Action(
        "cancel",
        "cancel",
        words,
        _object({"run": _RUN, "reason": _TEXT}, required=["run"]),
        _object({"run": _one_of(open_runs), "reason": _TEXT}, required=["run"]),
        why_not="" if open_runs else "no run of this session is open",
    )


# The ruling


@dataclass(frozen=True, slots=True)
class Case:
    """What one call is ruled on."""

    record: SessionRecord
    terms: AgentTerms
    now: Catalogue
    decided_on: str
    now_ms: int
    violation: Callable[[Schema, Any], tuple[str, str] | None]
    """(pointer, message) of the first violation of a JSON Schema."""
    refusal_of_input: Callable[[Action, dict[str, Any]], str] = lambda action, arguments: ""
    """Why the workflow would not begin with these arguments; "" when it would."""
    has_acted: bool = False
    """An earlier call of the same reply took effect, so this one was decided without knowing its outcome."""


def check_schema(call: Call, case: Case) -> Denied | None:
    action = case.now.named(call.name)
    if action is None:
        known = ", ".join(one.name for one in offered(case.now, case.record.scopes))
        return Denied("schema", "UNKNOWN_ACTION", f"there is no action {call.name!r}; there are {known}")
    found = case.violation(action.form, call.arguments)
    if found is not None:
        return Denied("schema", "SCHEMA", found[1], f"/arguments{found[0]}")
    if why := case.refusal_of_input(action, call.arguments):
        return Denied("schema", "INPUT", why, "/arguments")
    return None


def check_authority(call: Call, case: Case) -> Denied | None:
    if case.record.is_expired(case.now_ms):
        return Denied("authority", "EXPIRED", "the session has expired; nothing is done in its name any more")
    action = case.now.named(call.name)
    missing = sorted(set(action.scopes) - set(case.record.scopes)) if action is not None else []
    if missing:
        who = case.record.principal or "the principal"
        return Denied("authority", "NOT_PERMITTED", f"{call.name} needs {', '.join(missing)}, which {who} has not")
    return None


def check_state(call: Call, case: Case) -> Denied | None:
    action = case.now.named(call.name)
    if case.has_acted:
        if call.name in ENDING:
            message = "it was decided before the outcome of the action before it was known; decide on that"
            return Denied("state", "STALE_ACTION", message)
    elif case.decided_on != case.now.version:
        message = f"it was chosen in state {case.decided_on}, and the state is {case.now.version} now; choose anew"
        return Denied("state", "STALE_ACTION", message)
    if action is None:
        return None
    if action.why_not:
        return Denied("state", "NOT_NOW", action.why_not)
    found = case.violation(action.schema, call.arguments)
    if found is not None:
        return Denied("state", "NOT_NOW", found[1], f"/arguments{found[0]}")
    return None


def check_budget(call: Call, case: Case) -> Denied | None:
    """Starting a run spends; everything else ends things or answers, and stays possible."""
    action, budget, record = case.now.named(call.name), case.terms.budget, case.record
    if action is None or action.kind != "start_workflow" or record.current is None:
        return None
    starts = sum(1 for one in record.current.acted if one.kind == "start_workflow" and one.status != "refused")
    if starts >= budget.starts:
        return Denied("budget", "STARTS", f"{starts} runs were started for this message, and {budget.starts} may be")
    if record.spent.tokens >= budget.tokens:
        return Denied("budget", "TOKENS", f"{record.spent.tokens} tokens are spent; the ceiling is {budget.tokens}")
    if 0 < record.spent.usd_micros >= budget.usd_micros:
        return Denied("budget", "USD", f"${record.spent.usd_micros / 1e6:.4f} are spent, which is the ceiling")
    return None


CHECKS: Final = (check_schema, check_authority, check_state, check_budget)


def rule(call: Call, case: Case, checks: Sequence[Callable[[Call, Case], Denied | None]] = CHECKS) -> Action | Denied:
    """The action, when every check passes; else the first no."""
    for check in checks:
        denied = check(call, case)
        if denied is not None:
            return denied
    action = case.now.named(call.name)
    assert action is not None, f"{call.name} passed the schema check and is no action"
    return action

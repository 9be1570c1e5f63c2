"""What should happen: an agent finds out what somebody wants, and acts only through the actions it is offered.

    support = app.agent("support-agent", instructions="Help customers resolve refund inquiries.",
        workflows=[refund], context=lambda session: {"customer_tier": session.context.account_tier})

An ``Agent`` is a declaration: names, texts, bounds and pure functions of the session. It holds no workflow, no
capability and no connection; what its model says is data until ``kernel.actions.rule`` has named an action (L1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from setpoint.app.capability import NAME
from setpoint.app.session import Session
from setpoint.app.typed import DefinitionFault, Fields
from setpoint.app.workflow import Workflow
from setpoint.kernel.actions import Action, AgentBudget, AgentTerms, Signal, Startable, action_name
from setpoint.kernel.flow import WaitFor, walk
from setpoint.kernel.session_record import EXCHANGES_KEPT_MAX, SessionRecord
from setpoint.kernel.units import parse_usd_micros
from setpoint.ports.proposer import Proposer

if TYPE_CHECKING:
    from setpoint.app.application import App
    from setpoint.engine.runs.program import Program

OfSession = Callable[[Session], Mapping[str, Any]]
Models = Sequence[str | Proposer]
_PLAIN: TypeAdapter[Any] = TypeAdapter(Any)
INSTRUCTIONS_CHARS_MAX = 8_000
"""They stand in every prompt: 2,000 tokens of the 24,000 a prompt may have."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A declared agent. Made by ``App.agent``, which says what each part means."""

    name: str
    instructions: str
    workflows: tuple[tuple[str, int], ...]
    context: OfSession | None
    signals: tuple[str, ...]
    fill: Mapping[str, OfSession]
    scopes: Mapping[str, tuple[str, ...]]
    budget: AgentBudget
    models: tuple[str | Proposer, ...]
    may_ask: bool
    recall: int


def declare(
    app: App,
    name: str,
    *,
    instructions: str,
    workflows: Sequence[Workflow[Any, Any]],
    context: OfSession | None = None,
    signals: Sequence[str] = (),
    fill: Mapping[str, OfSession] | None = None,
    scopes: Mapping[str, Sequence[str]] | None = None,
    budget: AgentBudget | Mapping[str, Any] | None = None,
    models: Models = (),
    may_ask: bool = True,
    recall: int = 1,
) -> Agent:
    """The agent, checked as far as it can be before its workflows are complete. DefinitionFault says what is wrong."""
    if not NAME.fullmatch(name):
        raise DefinitionFault(f"{name!r} is no name for an agent: letters, digits, - _ . and at most 64 of them")
    if not instructions.strip() or len(instructions) > INSTRUCTIONS_CHARS_MAX:
        raise DefinitionFault(
            f"the instructions of {name} have {len(instructions)} characters; they have 1 to {INSTRUCTIONS_CHARS_MAX}"
        )
    named: list[tuple[str, int]] = []
    for workflow in workflows:
        if not isinstance(workflow, Workflow):  # type: ignore[reportUnnecessaryIsInstance]
            raise DefinitionFault(
                f"{name} may start {workflow!r}, which is no workflow",
                hint="An agent holds no capability; put it into a workflow and give the agent that.",
            )
        if workflow not in app.workflows:
            raise DefinitionFault(f"{name} may start {workflow.name!r}, which is no workflow of {app.name}")
        if workflow.name in (known for known, _ in named):
            raise DefinitionFault(f"{name} may start two workflows named {workflow.name!r}; give it one version")
        named.append((workflow.name, workflow.version))
    _refuse_strangers(name, named, signals, fill or {}, scopes or {})
    if not 0 <= recall <= EXCHANGES_KEPT_MAX:
        raise DefinitionFault(f"recall of {name} is {recall}; it is 0 to {EXCHANGES_KEPT_MAX}")
    return Agent(
        name,
        instructions,
        tuple(named),
        context,
        tuple(signals),
        dict(fill or {}),
        {key: tuple(value) for key, value in (scopes or {}).items()},
        _budget(name, budget),
        tuple(models),
        may_ask,
        recall,
    )


def _refuse_strangers(
    name: str,
    workflows: Sequence[tuple[str, int]],
    signals: Sequence[str],
    fill: Mapping[str, OfSession],
    scopes: Mapping[str, Sequence[str]],
) -> None:
    known = [workflow for workflow, _ in workflows]
    for key in fill:
        if key not in known:
            raise DefinitionFault(f"{name} fills the input of {key!r}, which it may not start")
    for key, needed in scopes.items():
        if key not in known and key not in signals:
            raise DefinitionFault(f"{name} names scopes for {key!r}, which is none of its workflows and signals")
        if isinstance(needed, str):
            raise DefinitionFault(f"the scopes of {name} for {key!r} are one text; write a list")


def _budget(name: str, given: AgentBudget | Mapping[str, Any] | None) -> AgentBudget:
    if given is None or isinstance(given, AgentBudget):
        return given or AgentBudget()
    found = dict(given)
    try:
        if "usd" in found:
            found["usd_micros"] = parse_usd_micros(str(Decimal(str(found.pop("usd")))))
        budget = AgentBudget(**found)
    except (TypeError, ValueError, ArithmeticError) as fault:
        raise DefinitionFault(
            f"the budget of {name}: {fault}", hint="budget={'turns': 8, 'starts': 4, 'tokens': 500_000, 'usd': 5}"
        ) from fault
    for bound in ("turns", "starts", "tokens", "usd_micros"):
        value = getattr(budget, bound)
        if type(value) is not int or value < 0:
            raise DefinitionFault(f"{bound} in the budget of {name} is {value!r}; it is a whole number of zero or more")
    return budget


class AgentAtWork:
    """An agent with the programs of its workflows, as the engine sees it: pure functions over plain JSON."""

    def __init__(
        self,
        agent: Agent,
        workflows: Mapping[tuple[str, int], tuple[Workflow[Any, Any], Program]],
        view: Callable[[SessionRecord], Session],
    ) -> None:
        self.agent = agent
        self.recall = agent.recall
        self._workflows = {key[0]: workflows[key] for key in agent.workflows}
        self._view = view
        self._digests = {name: program.definition.digest for name, (_, program) in self._workflows.items()}
        self._signals = _signals(agent, self._workflows)
        self._payloads = {
            action_name("choose" if one.choices else "provide_input", one.workflow, one.signal): adapter
            for one in self._signals
            if (adapter := _adapter(*self._workflows[one.workflow], one.signal)) is not None
        }

    def terms(self, record: SessionRecord) -> AgentTerms:
        agent = self.agent
        return AgentTerms(
            name=agent.name,
            instructions=agent.instructions,
            workflows=tuple(self._startable(name, record) for name in self._workflows),
            signals=self._signals,
            may_ask=agent.may_ask,
            budget=agent.budget,
        )

    def projection(self, record: SessionRecord) -> dict[str, Any]:
        if self.agent.context is None:
            return {}
        found = self.agent.context(self._view(record))
        return _PLAIN.dump_python(dict(found), mode="json")

    def complete(self, action: Action, arguments: dict[str, Any], record: SessionRecord) -> dict[str, Any]:
        return {**arguments, **self._filled(action.target, record)}

    def refusal(self, action: Action, arguments: dict[str, Any], record: SessionRecord) -> str:
        try:
            if action.kind == "start_workflow":
                _, program = self._workflows[action.target]
                program.begin(self.complete(action, arguments, record))
            elif action.name in self._payloads:  # what the schema lets pass and the type does not would pause the run
                said = arguments["choice" if action.kind == "choose" else "payload"]
                self._payloads[action.name].validate_python(said, strict=False)
        except Exception as fault:  # noqa: BLE001  # the author's validators may raise anything; none of it may start a run
            return str(fault)[:600]
        return ""

    def _filled(self, workflow: str, record: SessionRecord) -> dict[str, Any]:
        function = self.agent.fill.get(workflow)
        if function is None:
            return {}
        return _PLAIN.dump_python(dict(function(self._view(record))), mode="json")

    def _startable(self, name: str, record: SessionRecord) -> Startable:
        workflow, _ = self._workflows[name]
        schema = workflow.input_fields.schema
        filled = self._filled(name, record)
        properties = {field: value for field, value in schema["properties"].items() if field not in filled}
        said = {
            "type": "object",
            "properties": properties,
            "required": [field for field in schema.get("required", ()) if field not in filled],
            "additionalProperties": False,
        }
        if "$defs" in schema:
            said["$defs"] = schema["$defs"]
        return Startable(
            workflow=name,
            definition=self._digests[name],
            schema=said,
            description=f"Start the workflow {name}. {schema.get('description', '')}".strip(),
            scopes=self.agent.scopes.get(name, ()),
        )


def _signals(agent: Agent, workflows: Mapping[str, tuple[Workflow[Any, Any], Program]]) -> tuple[Signal, ...]:
    """The signals the agent may send. DefinitionFault for one that none of its workflows waits for."""
    found: dict[tuple[str, str], Signal] = {}
    for name, (_, program) in workflows.items():
        definition = program.definition
        for _, node in walk(definition.body, definition.name):
            if isinstance(node, WaitFor) and node.signal in agent.signals:
                schema = _payload(definition.state, node.into)
                found[name, node.signal] = Signal(
                    workflow=name,
                    signal=node.signal,
                    schema=schema,
                    choices=tuple(schema.get("enum", ())),
                    scopes=agent.scopes.get(node.signal, ()),
                )
    for signal in agent.signals:
        if signal not in (known for _, known in found):
            raise DefinitionFault(f"{agent.name} may send the signal {signal!r}, which no workflow of its waits for")
    return tuple(found.values())


def _adapter(workflow: Workflow[Any, Any], program: Program, signal: str) -> TypeAdapter[Any] | None:
    """The type of the state's field that the signal's payload goes to; None when it goes to none."""
    definition = program.definition
    annotations = Fields.of(workflow.state_type, workflow.name).annotations
    for _, node in walk(definition.body, definition.name):
        if isinstance(node, WaitFor) and node.signal == signal and node.into in annotations:
            return TypeAdapter(annotations[node.into])
    return None


def _payload(state: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The schema of the state's field a payload goes to, without "or nothing": a signal brings something."""
    if not field:
        return {}
    schema = dict(state["properties"][field])
    resolve = partial(_resolved, state.get("$defs", {}))
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) == 1:
        schema = dict(options[0])
    elif options:
        schema = {**schema, "anyOf": options}
    schema = resolve(schema)
    schema.pop("default", None)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    return schema | {"$defs": state["$defs"]} if "$defs" in state else schema


def _resolved(definitions: Mapping[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return dict(definitions[name]) if name in definitions else schema


__all__ = ["Agent", "AgentAtWork", "AgentBudget", "declare"]

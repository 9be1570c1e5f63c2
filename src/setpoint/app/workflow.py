"""Declare what may happen: a workflow as a chain of named nodes over a typed state.

    refund = (app.workflow("refund", input=RefundInput, state=RefundState)
        .capability("load-order", load_order)
        .step("check-policy", evaluate_refund_policy)
        .branch("decision", lambda state: "APPROVED" if state.eligible else "REJECTED",
                {"APPROVED": issue_refund_fragment, "REJECTED": reject_request_fragment}))

Each call adds a node and returns the chain, so a mistake is told at its line. A function of the state takes ``(state)``
or ``(state, input)`` and does no I/O. What the whole graph must keep (no effect outside the boundary, no irreversible
one without its approval) is proved when the app is opened: ``kernel/obligations.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar

from msgspec.structs import replace

from setpoint.app.capability import NAME, Capability
from setpoint.app.typed import DefinitionFault, Fields, Values, takes
from setpoint.engine.runs.program import (
    ApprovalCode,
    BranchCode,
    CallCode,
    ChildCode,
    Code,
    JudgeCode,
    MapCode,
    Program,
    RepeatCode,
    StepCode,
    WaitCode,
)
from setpoint.kernel import limits
from setpoint.kernel.effects import EFFECT_CLASSES
from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    ApprovalTerms,
    Block,
    Branch,
    Call,
    Child,
    Definition,
    Judge,
    Map,
    Parallel,
    Repeat,
    Sleep,
    Step,
    Use,
    WaitFor,
    join,
    walk,
)
from setpoint.kernel.units import parse_duration_ms

StateT = TypeVar("StateT")
InputT = TypeVar("InputT")
Pure = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node as it was declared, its code, and the chains it holds by the name of their block."""

    node: AnyNode
    code: Code | None
    inner: tuple[tuple[str, Chain[Any]], ...] = ()


class Chain(Generic[StateT]):
    """A sequence of nodes over one state type: what workflows and fragments have in common."""

    def __init__(self, name: str, state: type[StateT], input: Fields | None) -> None:
        if not NAME.fullmatch(name):
            raise DefinitionFault(f"{name!r} is no name: a letter, then letters, digits, - _ . and at most 64 of them")
        self.name = name
        self.state_type = state
        self._state = Fields.of(state, f"the state of {name}")
        self._input = input
        self._placed: list[_Placed] = []
        self._capabilities: dict[str, Capability] = {}

    # Doing

    def capability(
        self,
        name: str,
        capability: Capability,
        *,
        args: Pure | None = None,
        into: str | None = None,
        require: Pure | None = None,
        approval: ApprovalTerms | None = None,
        approval_when: Pure | None = None,
        preview: Pure | None = None,
    ) -> Self:
        """Call a capability. Without ``args`` its parameters are the fields of those names, of the state or else of the
        input. Its result goes into the field ``into``, by default the one field of that type.

        ``require`` must be true of the state just before the call. ``approval`` asks people first, about exactly this
        call, when ``approval_when`` says so; ``preview`` is what they are shown.
        """
        if not isinstance(capability, Capability):  # type: ignore[reportUnnecessaryIsInstance]
            raise DefinitionFault(
                f"{self.name}/{name} calls {capability!r}, which is no capability",
                hint="Declare it with @capability(effect=...); what has no side effect is a .step.",
            )
        field = self._field_for(name, capability, into)
        arguments = self._arguments(name, capability, args)
        code = CallCode(
            arguments,
            _absorb(self._state, capability, field),
            self._reading(approval_when),
            self._reading(preview),
            self._reading(require),
        )
        terms = approval
        if terms is not None and approval_when is not None:
            terms = _conditional(terms)
        node = Call(name=name, capability=capability.contract, into=field or "", approval=terms)
        self._capabilities = _merged([self._capabilities, {capability.name: capability}])
        return self._place(node, code)

    def step(self, name: str, function: Pure) -> Self:
        """A deterministic change: returns the new state, or a mapping of the fields that change."""
        if inspect.iscoroutinefunction(function):
            raise DefinitionFault(f"the step {self.name}/{name} is async; a step waits for nothing: use a capability")
        return self._place(Step(name=name), StepCode(partial(_stepped, self._state, self._reading(function))))

    def judge(
        self,
        name: str,
        *,
        instructions: str,
        show: Pure,
        into: str,
        labels: Sequence[str] = (),
        attempts: int = 2,
    ) -> Self:
        """A model reads what ``show`` gives it and answers with a text, or one of the labels, into a field."""
        self._require_field(name, into)
        node = Judge(name=name, instructions=instructions, into=into, labels=tuple(labels), attempts=attempts)
        return self._place(node, JudgeCode(self._reading(show), partial(_put, self._state, into)))

    # Choosing and repeating

    def branch(self, name: str, select: Pure, cases: Mapping[str, Fragment[Any]]) -> Self:
        """The case whose label ``select`` returns. An unknown label fails the run; no case is entered."""
        if not cases:
            raise DefinitionFault(f"the branch {self.name}/{name} has no cases")
        for label, target in cases.items():
            self._require_chain(name, f"the case {label!r}", target)
        chains = dict(cases)
        node = Branch(name=name, cases=dict.fromkeys(chains, ()))
        return self._place(node, BranchCode(self._reading(select)), chains)

    def fragment(self, name: str, fragment: Fragment[Any]) -> Self:
        """The nodes of a fragment, here."""
        self._require_chain(name, "it", fragment)
        return self._place(Use(name=name, body=(), fragment=fragment.name), None, {"": fragment})

    def parallel(self, name: str, branches: Mapping[str, Fragment[Any]]) -> Self:
        """All of them at once, each on its own copy of the state. Two that write one field differently fail the run."""
        if len(branches) < 2:
            raise DefinitionFault(f"{self.name}/{name} is parallel to nothing: it has {len(branches)} branch")
        for label, target in branches.items():
            self._require_chain(name, f"the branch {label!r}", target)
        node = Parallel(name=name, branches=dict.fromkeys(branches, ()))
        return self._place(node, None, dict(branches))

    def map(
        self,
        name: str,
        over: Pure,
        body: Fragment[Any],
        *,
        item: str,
        collect: str | None = None,
        into: str | None = None,
        at_most: int = 100,
        at_once: int = 8,
    ) -> Self:
        """The body once for each item of the list that ``over`` gives, the item in the field ``item``.

        The field ``collect`` of each round becomes a list in ``into``.
        """
        self._require_chain(name, "the body", body)
        self._require_field(name, item)
        if (collect is None) != (into is None):
            raise DefinitionFault(f"{self.name}/{name} needs both collect= and into=, or neither")
        if collect is not None and into is not None:
            self._require_field(name, collect)
            self._require_field(name, into)
        if not 1 <= at_most <= limits.MAP_ITEMS_MAX:
            raise DefinitionFault(
                f"at_most of {self.name}/{name} is {at_most}; it is 1 to {limits.MAP_ITEMS_MAX}",
                hint="Give more items to a sub-workflow each, in slices.",
            )
        node = Map(
            name=name, body=(), item=item, at_most=at_most, at_once=at_once, collect=collect or "", into=into or ""
        )
        return self._place(node, MapCode(self._reading(over)), {"*": body})

    def repeat(self, name: str, body: Fragment[Any], *, until: Pure, at_most: int) -> Self:
        """The body, again and again until the state satisfies ``until``; more than ``at_most`` rounds fail the run."""
        self._require_chain(name, "the body", body)
        if at_most < 1:
            raise DefinitionFault(f"at_most of {self.name}/{name} is {at_most}; it is at least 1")
        return self._place(Repeat(name=name, body=(), at_most=at_most), RepeatCode(self._reading(until)), {"*": body})

    def workflow(self, name: str, workflow: Workflow[Any, Any], *, input: Pure, into: str | None = None) -> Self:
        """Another workflow as a run of its own, with what ``input`` gives it; its output goes into a field."""
        if not isinstance(workflow, Workflow):  # type: ignore[reportUnnecessaryIsInstance]
            raise DefinitionFault(f"{self.name}/{name} starts {workflow!r}, which is no workflow")
        if into is not None:
            self._require_field(name, into)
        program = workflow.program
        called = {effector.contract.effect for effector in program.effectors.values()}
        node = Child(
            name=name,
            workflow=workflow.name,
            version=workflow.version,
            definition=program.definition.digest,
            effects=tuple(effect for effect in EFFECT_CLASSES if effect in called),
            into=into or "",
        )
        absorb = partial(_put, self._state, into) if into is not None else _nothing
        return self._place(node, ChildCode(program, partial(_input_for, self._reading(input), workflow), absorb))

    # Waiting

    def wait_for(
        self,
        name: str,
        signal: str | None = None,
        *,
        timeout: str,
        into: str | None = None,
        on_timeout: Literal["fail", "continue"] = "fail",
    ) -> Self:
        """Until the signal comes (named like the node unless said otherwise); its payload goes into a field."""
        if into is not None:
            self._require_field(name, into)
        node = WaitFor(
            name=name,
            signal=signal or name,
            timeout_ms=parse_duration_ms(timeout),
            into=into or "",
            on_timeout=on_timeout,
        )
        absorb = partial(_put, self._state, into) if into is not None else _nothing
        return self._place(node, WaitCode(absorb))

    def sleep(self, name: str, duration: str) -> Self:
        """For a time. A run that sleeps is a record: no thread, no task."""
        return self._place(Sleep(name=name, ms=parse_duration_ms(duration)), None)

    def approval(
        self,
        name: str,
        *,
        by: Sequence[str],
        of: str | None = None,
        when: Pure | None = None,
        show: Pure | None = None,
        preview: Pure | None = None,
        quorum: int = 1,
        each_role: bool = False,
        expires: str = "24h",
        into: str | None = None,
    ) -> Self:
        """Until people in these roles said yes: to the call of the node ``of`` as it would be made now, or, without it,
        to going on from what ``show`` shows.

        A no, or no answer in time, ends the run; with ``into`` the answer goes into that field instead and the run goes
        on (a call it stands for stays forbidden).
        """
        if (of is None) == (show is None):
            raise DefinitionFault(f"{self.name}/{name} approves a call (of=) or what it shows (show=), one of the two")
        if into is not None:
            self._require_field(name, into)
        terms = approval_terms(by=by, quorum=quorum, each_role=each_role, expires=expires)
        if when is not None:
            terms = _conditional(terms)
        shown = self._reading(show) if show is not None else _no_subject
        absorb = partial(_put, self._state, into) if into is not None else _nothing
        code = ApprovalCode(shown, absorb, self._reading(when), self._reading(preview))
        return self._place(Approval(name=name, terms=terms, of=of or "", into=into or ""), code)

    # What the chain is made of

    def _place(self, node: AnyNode, code: Code | None, inner: Mapping[str, Chain[Any]] | None = None) -> Self:
        if not NAME.fullmatch(node.name):
            raise DefinitionFault(f"{node.name!r} in {self.name} is no name for a node: letters, digits, - _ .")
        if any(placed.node.name == node.name for placed in self._placed):
            raise DefinitionFault(f"{self.name} has two nodes named {node.name!r}; every run would confuse them")
        self._placed.append(_Placed(node, code, tuple((inner or {}).items())))
        return self

    def _require_chain(self, name: str, what: str, target: Any) -> None:
        if not isinstance(target, Fragment):
            raise DefinitionFault(
                f"{what} of {self.name}/{name} leads to {target!r}, which is no fragment",
                hint="Make one with app.fragment(NAME, state=...).",
            )
        missing = sorted(target._state.names - self._state.names)
        if missing:
            raise DefinitionFault(
                f"{what} of {self.name}/{name} is the fragment {target.name}, whose state has {', '.join(missing)}; "
                f"the state of {self.name} has no such field"
            )

    def _require_field(self, name: str, field: str) -> None:
        if field not in self._state.names:
            known = ", ".join(sorted(self._state.names))
            raise DefinitionFault(f"{self.name}/{name} names the field {field!r}; the state has {known}")

    def _reading(self, function: Any) -> Any:
        """The author's pure function over plain JSON."""
        if function is None:
            return None
        return partial(_read, self._state, self._input, function, takes(function))

    def _field_for(self, name: str, capability: Capability, into: str | None) -> str | None:
        if into is not None:
            self._require_field(name, into)
            return into
        result = capability.signature.result_type
        if result in (None, type(None)):
            return None
        fields = [field for field, type in self._state.annotations.items() if _holds(type, result)]
        if len(fields) == 1:
            return fields[0]
        found = f"{len(fields)} fields ({', '.join(fields)})" if fields else "no field"
        raise DefinitionFault(
            f"{capability.name} at {self.name}/{name} gives a {_shown(result)}, and the state has {found} of that type",
            hint="Say which with into=FIELD.",
        )

    def _arguments(self, name: str, capability: Capability, args: Pure | None) -> Any:
        if args is not None:
            return partial(_given, capability, self._reading(args))
        inputs = self._input.names if self._input is not None else frozenset[str]()
        for parameter, is_required in capability.signature.names().items():
            is_known = parameter in self._state.names or parameter in inputs
            if is_required and not is_known and self._input is not None:
                raise DefinitionFault(
                    f"{capability.name} at {self.name}/{name} takes {parameter!r}, which is no field of state or input",
                    hint="Pass args=lambda state: {...}.",
                )
        return partial(_named, capability, tuple(capability.signature.names()))

    def block(self, at: str, code: dict[str, Code]) -> Block:
        """The nodes in place below the path ``at``, with the blocks they hold; their code goes into the table."""
        nodes: list[AnyNode] = []
        for placed in self._placed:
            path = join(at, placed.node.name)
            if placed.code is not None:
                code[path] = placed.code
            inner = {label: chain.block(join(path, label), code) for label, chain in placed.inner}
            nodes.append(_with_blocks(placed.node, inner, at))
        return tuple(nodes)

    def capabilities(self) -> dict[str, Capability]:
        """Every capability the chain may call, by name. DefinitionFault when two share a name."""
        inner = [chain.capabilities() for placed in self._placed for _, chain in placed.inner]
        return _merged([self._capabilities, *inner])


class Fragment(Chain[StateT]):
    """A reusable part of workflows; its nodes get their paths where it is used."""

    def __init__(self, name: str, state: type[StateT]) -> None:
        super().__init__(name, state, None)


def _with_blocks(node: AnyNode, inner: Mapping[str, Block], at: str) -> AnyNode:
    match node:
        case Branch():
            return replace(node, cases=dict(inner))
        case Parallel():
            return replace(node, branches=dict(inner))
        case Use():
            return replace(node, body=inner[""])
        case Map() | Repeat():
            return replace(node, body=inner["*"])
        case Approval(of=of) if of:
            return replace(node, of=join(at, of))
        case _:
            return node


class Workflow(Chain[StateT], Generic[InputT, StateT]):
    """What may happen, from an input to an output. Made by ``App.workflow``."""

    def __init__(
        self,
        name: str,
        *,
        input: type[InputT],
        state: type[StateT],
        version: int = 1,
        boundary: Sequence[Capability] | None = None,
        initial: Callable[[InputT], StateT] | None = None,
        output: Pure | None = None,
        on_bug: Literal["pause", "fail"] = "pause",
    ) -> None:
        self.input_fields = Fields.of(input, f"the input of {name}")
        super().__init__(name, state, self.input_fields)
        self.version = version
        self._boundary = None if boundary is None else {one.name: one for one in boundary}
        self._initial = initial
        self._output = output
        self._on_bug = on_bug
        if initial is None:
            self._require_initial()
        if version < 1:
            raise DefinitionFault(f"the version of {name} is {version}; it is at least 1")

    def _require_initial(self) -> None:
        missing = sorted(self._state.required - self.input_fields.names)
        if missing:
            raise DefinitionFault(
                f"the state of {self.name} needs {', '.join(missing)} to begin with, and the input has no such field",
                hint="Give the field a default, or pass initial=lambda input: State(...).",
            )

    def begin(self, input: Any) -> tuple[Values, Values]:
        """(input, first state) as plain JSON. InputFault when the input does not fit."""
        from pydantic import ValidationError

        try:
            given = self.input_fields.adapter.validate_python(input)
            values = self.input_fields.write(given)
            state = self._state.read(values) if self._initial is None else self._initial(given)
        except ValidationError as fault:
            raise InputFault(self.name, fault) from fault
        return values, self._state.write(state)

    @property
    def program(self) -> Program:
        """The definition with its code. DefinitionFault for what only the whole graph shows."""
        code: dict[str, Code] = {}
        body = self.block(self.name, code)
        called = self.capabilities()
        definition = Definition(
            name=self.name,
            version=self.version,
            input=self.input_fields.schema,
            state=self._state.schema,
            body=body,
            boundary=tuple(sorted(called if self._boundary is None else self._boundary)),
        )
        _require_approved(definition)
        output = self._reading(self._output) if self._output is not None else _whole
        return Program.of(definition, code, called, output, self.begin, self._on_bug)


class InputFault(DefinitionFault):
    """The input of a run does not fit its workflow; nothing was started."""

    def __init__(self, workflow: str, fault: Any) -> None:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'input'}: {problem['msg']}"
            for problem in fault.errors()
        )
        super().__init__(f"the input of {workflow} does not fit: {problems}")


def approval_terms(
    *, by: Sequence[str], quorum: int = 1, each_role: bool = False, expires: str = "24h"
) -> ApprovalTerms:
    """Who must say yes, for ``.capability(..., approval=...)``."""
    roles = tuple(by)
    if isinstance(by, str) or not roles or not all(roles) or len(set(roles)) != len(roles):
        raise DefinitionFault(f"by={by!r} names no roles, or one twice; an approval needs somebody who may give it")
    if not 1 <= quorum <= limits.APPROVAL_SEATS_MAX or len(roles) > limits.APPROVAL_SEATS_MAX:
        raise DefinitionFault(f"quorum is {quorum}; it is 1 to {limits.APPROVAL_SEATS_MAX}")
    return ApprovalTerms(by=roles, quorum=quorum, each_role=each_role, expires_ms=parse_duration_ms(expires))


def _conditional(terms: ApprovalTerms) -> ApprovalTerms:
    return replace(terms, is_conditional=True)


def _require_approved(definition: Definition) -> None:
    """Every approval that stands for a call names one that is there."""
    nodes = dict(walk(definition.body, definition.name))
    for path, node in nodes.items():
        if isinstance(node, Approval) and node.of and not isinstance(nodes.get(node.of), Call):
            raise DefinitionFault(f"{path} approves the call of {node.of}, and there is no such call beside it")


def _merged(tables: Iterable[Mapping[str, Capability]]) -> dict[str, Capability]:
    found: dict[str, Capability] = {}
    for table in tables:
        for name, capability in table.items():
            if found.setdefault(name, capability) is not capability:
                raise DefinitionFault(f"two capabilities are named {name!r}; their keys and records would be confused")
    return found


# The author's functions over plain JSON. Module functions, bound by partial: a program holds no closures of a chain.


def _read(state: Fields, input: Fields | None, function: Pure, count: int, values: Values, given: Values) -> Any:
    if count == 0:
        return function()
    if count == 1:
        return function(state.read(values))
    return function(state.read(values), given if input is None else input.read(given))


def _stepped(state: Fields, function: Any, values: Values, given: Values) -> Values:
    result = function(values, given)
    if result is None:
        raise TypeError("it returned nothing; return the state, or a mapping of the fields that change")
    return _changed(state, values, result)


def _changed(state: Fields, values: Values, result: Any) -> Values:
    """The fields that a new state, or a mapping of some of its fields, changes; checked against the state's type."""
    if isinstance(result, Mapping):
        unknown = sorted(set(result) - state.names)  # type: ignore[reportUnknownArgumentType]
        if unknown:
            raise TypeError(f"it returned the fields {', '.join(unknown)}, which the state does not have")
        result = state.read({**values, **result})
    after = state.write(result)
    return {name: value for name, value in after.items() if name not in values or values[name] != value}


def _put(state: Fields, field: str, values: Values, result: Any) -> Values:
    state.read({**values, field: result})
    return {field: result}


def _nothing(values: Values, result: Any) -> Values:
    return {}


def _absorb(state: Fields, capability: Capability, field: str | None) -> Any:
    return _nothing if field is None else partial(_put, state, field)


def _named(capability: Capability, names: Sequence[str], values: Values, given: Values) -> Values:
    found = {name: values[name] if name in values else given[name] for name in names if name in values or name in given}
    return capability.signature.complete(found)


def _given(capability: Capability, function: Any, values: Values, given: Values) -> Values:
    return capability.signature.complete(function(values, given))


def _input_for(function: Any, workflow: Workflow[Any, Any], values: Values, given: Values) -> Values:
    return workflow.input_fields.write(workflow.input_fields.adapter.validate_python(function(values, given)))


def _whole(values: Values, given: Values) -> Values:
    return values


def _no_subject(values: Values, given: Values) -> Values:
    return {}


def _holds(field: Any, result: Any) -> bool:
    """Whether a field of a state is of the type of a result: the same, or that or None."""
    return field == result or field == (result | None if isinstance(result, type) else result)


def _shown(type: Any) -> str:
    return getattr(type, "__name__", str(type))

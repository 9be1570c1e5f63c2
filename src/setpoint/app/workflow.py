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
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, Literal, Self, TypeVar

from msgspec.structs import replace
from pydantic import ValidationError

from setpoint.app.capability import NAME, Capability
from setpoint.app.declaring import declaration
from setpoint.app.typed import (
    DefinitionFault,
    Fields,
    Values,
    adapter_of,
    fresh,
    json_kinds,
    plain_of,
    structure,
    takes,
)
from setpoint.engine.runs.program import (
    ApprovalCode,
    BranchCode,
    CallCode,
    ChildCode,
    Code,
    JudgeCode,
    MapCode,
    ParallelCode,
    Program,
    RepeatCode,
    StepCode,
    WaitCode,
    is_same,
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

LABEL = re.compile(r"[^\s/*#]([^/*#\n\t\r]{0,62}[^\s/*#])?")
"""A label is a part of paths."""
APPROVAL_MS_MAX = 366 * 86_400_000
"""Who has said nothing in a year will not; and every time of a ticket can be shown."""


_SCALARS = frozenset({"string", "number", "boolean"})
_ANSWERS = [{"outcome": outcome, "by": ["ann"], "reason": ""} for outcome in ("granted", "denied", "expired")]
"""Of people, as ``.approval(into=...)`` puts them into the state."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node as it was declared, its code, and the chains it holds by the name of their block."""

    node: AnyNode
    code: Code | None
    inner: tuple[tuple[str, Chain[Any]], ...] = ()


class Chain(Generic[StateT]):
    """A sequence of nodes over one state type: what workflows and fragments have in common."""

    @declaration
    def __init__(self, name: str, state: type[StateT], input: Fields | None) -> None:
        if not NAME.fullmatch(name):
            raise DefinitionFault(f"{name!r} is no name: a letter, then letters, digits, - _ . and at most 64 of them")
        self.name = name
        self.state_type = state
        self._state = Fields.of(state, f"the state of {name}")
        self._input = input
        self._placed: list[_Placed] = []
        self._capabilities: dict[str, Capability] = {}
        self._wanted: list[tuple[str, str, str]] = []
        self._started: list[tuple[str, Workflow[Any, Any], str]] = []

    # Doing

    @declaration
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
        input. Its result goes into the field ``into``, by default the one field of that type; ``into=""`` drops it.

        ``require`` must be true of the state just before the call. ``approval`` asks people first, about exactly this
        call, when ``approval_when`` says so; ``preview`` is what they are shown.
        """
        if not isinstance(capability, Capability):  # type: ignore[reportUnnecessaryIsInstance]
            raise DefinitionFault(
                f"{self.name}/{name} calls {capability!r}, which is no capability",
                hint="Declare it with @capability(effect=...); what has no side effect is a .step.",
            )
        terms = self._terms(name, approval, approval_when, preview)
        field = self._field_for(name, capability, into)
        arguments = self._arguments(name, capability, args)
        code = CallCode(
            arguments,
            _absorb(self._state, field),
            self._reading(name, approval_when),
            self._reading(name, preview),
            self._reading(name, require),
            _words_of(require),
        )
        node = Call(name=name, capability=capability.contract, into=field or "", approval=terms)
        self._capabilities = _merged([self._capabilities, {capability.name: capability}])
        return self._place(node, code)

    @declaration
    def step(self, name: str, function: Pure) -> Self:
        """A deterministic change: returns the new state, or a mapping of the fields that change."""
        if inspect.iscoroutinefunction(function):
            raise DefinitionFault(f"the step {self.name}/{name} is async; a step waits for nothing: use a capability")
        return self._place(Step(name=name), StepCode(partial(_stepped, self._state, self._reading(name, function))))

    @declaration
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
        """A model reads what ``show`` gives it and answers with a text, or one of the labels, into a field.

        It sees ``instructions``, the labels and what ``show`` returns, and nothing else of the state. An answer that is
        no label, or that the field refuses, is asked for again, ``attempts`` times in all; then the run fails.
        """
        self._require_field(name, into)
        self._require_kind(name, into, frozenset({"string"}), "a text")
        self._require_fit(name, into, *labels)
        if attempts < 1 or len(set(labels)) != len(labels):
            raise DefinitionFault(f"{self.name}/{name} has {attempts} attempts, at least 1, or repeats a label")
        node = Judge(name=name, instructions=instructions, into=into, labels=tuple(labels), attempts=attempts)
        return self._place(
            node, JudgeCode(partial(_subject, self._reading(name, show)), partial(_put, self._state, into))
        )

    # Choosing and repeating

    @declaration
    def branch(self, name: str, select: Pure, cases: Mapping[str, Fragment[Any]]) -> Self:
        """The case whose label ``select`` returns. An unknown label fails the run; no case is entered."""
        if not cases:
            raise DefinitionFault(f"the branch {self.name}/{name} has no cases")
        for label, target in cases.items():
            self._require_label(name, label)
            self._require_chain(name, f"the case {label!r}", target)
        chains = dict(cases)
        node = Branch(name=name, cases=dict.fromkeys(chains, ()))
        return self._place(node, BranchCode(partial(_selected, self._reading(name, select))), chains)

    @declaration
    def fragment(self, name: str, fragment: Fragment[Any]) -> Self:
        """The nodes of a fragment, here."""
        self._require_chain(name, "the content", fragment)
        return self._place(Use(name=name, body=(), fragment=fragment.name), None, {"": fragment})

    @declaration
    def parallel(self, name: str, branches: Mapping[str, Fragment[Any]]) -> Self:
        """All of them at once, each on its own copy of the state. Two that write one field differently fail the run."""
        if len(branches) < 2:
            raise DefinitionFault(f"{self.name}/{name} is parallel to nothing: it has {len(branches)} branch")
        for label, target in branches.items():
            self._require_label(name, label)
            self._require_chain(name, f"the branch {label!r}", target)
        node = Parallel(name=name, branches=dict.fromkeys(branches, ()))
        return self._place(node, ParallelCode(partial(_together, self._state)), dict(branches))

    @declaration
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

        The field ``collect`` of each round becomes a list in ``into``; nothing else that the body writes is kept. More
        items than ``at_most`` fail the run; ``at_once`` rounds are under way at a time.
        """
        self._require_chain(name, "the body", body)
        self._require_field(name, item)
        if (collect is None) != (into is None):
            raise DefinitionFault(f"{self.name}/{name} needs both collect= and into=, or neither")
        if collect is not None and into is not None:
            self._require_field(name, collect)
            self._require_field(name, into)
            self._require_kind(name, into, frozenset({"array"}), "a list")
        if not 1 <= at_most <= limits.MAP_ITEMS_MAX:
            raise DefinitionFault(
                f"at_most of {self.name}/{name} is {at_most}; it is 1 to {limits.MAP_ITEMS_MAX}",
                hint="Give more items to a sub-workflow each, in slices.",
            )
        if at_once < 1:
            raise DefinitionFault(f"at_once of {self.name}/{name} is {at_once}; it is at least 1")
        node = Map(
            name=name, body=(), item=item, at_most=at_most, at_once=at_once, collect=collect or "", into=into or ""
        )
        items = partial(_listed, self._reading(name, over), self._adapter(item), at_most)
        gather = _nothing if into is None else partial(_put, self._state, into)
        return self._place(node, MapCode(items, gather), {"*": body})

    @declaration
    def repeat(self, name: str, body: Fragment[Any], *, until: Pure, at_most: int) -> Self:
        """The body, again and again until the state satisfies ``until``; more than ``at_most`` rounds fail the run."""
        self._require_chain(name, "the body", body)
        if at_most < 1:
            raise DefinitionFault(f"at_most of {self.name}/{name} is {at_most}; it is at least 1")
        code = RepeatCode(self._reading(name, until))
        return self._place(Repeat(name=name, body=(), at_most=at_most), code, {"*": body})

    @declaration
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
        self._started.append((name, workflow, node.definition))
        absorb = _absorb(self._state, into)
        return self._place(node, ChildCode(program, partial(_input_for, self._reading(name, input), workflow), absorb))

    # Waiting

    @declaration
    def wait_for(
        self,
        name: str,
        signal: str | None = None,
        *,
        timeout: str,
        into: str | None = None,
        on_timeout: Literal["fail", "continue"] = "fail",
    ) -> Self:
        """Until the signal comes (named like the node unless said otherwise); its payload goes into a field.

        When ``timeout`` is over the run fails, or goes on with ``on_timeout="continue"``. A signal that came before the
        run got here is kept for it.
        """
        if into is not None:
            self._require_field(name, into)
        if on_timeout not in ("fail", "continue"):
            raise DefinitionFault(f"on_timeout of {self.name}/{name} is {on_timeout!r}; it is fail or continue")
        node = WaitFor(
            name=name,
            signal=signal or name,
            timeout_ms=_duration(f"the timeout of {self.name}/{name}", timeout),
            into=into or "",
            on_timeout=on_timeout,
        )
        return self._place(node, WaitCode(_absorb(self._state, into)))

    @declaration
    def sleep(self, name: str, duration: str) -> Self:
        """For a time. A run that sleeps is a record: no thread, no task."""
        return self._place(Sleep(name=name, ms=_duration(f"the duration of {self.name}/{name}", duration)), None)

    @declaration
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

        A no, or no answer in time, ends the run; with ``into`` the answer goes into that field instead, a mapping
        ``{"outcome": "granted" | "denied" | "expired", "by": [...], "reason": ...}``, and the run goes on (a call it
        stands for stays forbidden).
        """
        if (of is None) == (show is None):
            raise DefinitionFault(f"{self.name}/{name} approves a call (of=) or what it shows (show=), one of the two")
        if into is not None:
            self._require_field(name, into)
            self._require_fit(name, into, *_ANSWERS)
        terms = approval_terms(by=by, quorum=quorum, each_role=each_role, expires=expires)
        if when is not None:
            terms = _conditional(terms)
        shown = partial(_subject, self._reading(name, show)) if show is not None else _no_subject
        absorb = _absorb(self._state, into)
        code = ApprovalCode(shown, absorb, self._reading(name, when), self._reading(name, preview))
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
        if target is self or target.holds(self):
            raise DefinitionFault(
                f"{what} of {self.name}/{name} leads back to {self.name}; a definition has no cycles",
                hint="Repeat with .repeat(NAME, body, until=..., at_most=...).",
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

    def _require_kind(self, name: str, field: str, kinds: frozenset[str], what: str) -> None:
        if not self._state.may_hold(field, kinds):
            declared = _shown(self._state.annotations.get(field, Any))
            raise DefinitionFault(f"{self.name}/{name} puts {what} into the field {field!r}, which is {declared}")

    def _require_fit(self, name: str, field: str, *values: Any) -> None:
        """What is known already to go into a field must fit it."""
        adapter = self._adapter(field)
        for value in values:
            try:
                adapter.validate_python(value, strict=False)
            except ValidationError as fault:
                declared = _shown(self._state.annotations.get(field, Any))
                raise DefinitionFault(
                    f"{self.name}/{name} puts {value!r} into the field {field!r}, which is {declared}"
                ) from fault

    def _require_result(self, name: str, capability: Capability, field: str) -> None:
        """Texts and numbers may pass for each other, where pydantic takes them so."""
        kinds = json_kinds(capability.signature.result_schema)
        if kinds is None or capability.signature.result_type is type(None):
            return
        if not kinds.isdisjoint(_SCALARS):
            kinds |= _SCALARS
        self._require_kind(name, field, kinds, f"a {_shown(capability.signature.result_type)}")

    def _require_label(self, name: str, label: Any) -> None:
        if not isinstance(label, str) or not LABEL.fullmatch(label):
            raise DefinitionFault(
                f"{label!r} of {self.name}/{name} is no label: a text of at most 64 characters without / * # or a break"
            )

    def _reading(self, name: str, function: Any) -> Any:
        """The author's pure function over plain JSON."""
        if function is None:
            return None
        if not callable(function) or inspect.iscoroutinefunction(function):
            kind = "async" if callable(function) else "no function"
            raise DefinitionFault(
                f"{function!r} at {self.name}/{name} is {kind}; a plain function of the state is needed"
            )
        count = takes(function)
        if count == 0:
            raise DefinitionFault(
                f"a function at {self.name}/{name} takes nothing; it takes the state, and the input if it wants",
                hint="Write lambda state: ...",
            )
        if count > 2:
            raise DefinitionFault(
                f"a function at {self.name}/{name} takes {count} arguments; it may take the state, and the input"
            )
        return partial(_read, self._state, self._input, function, count)

    def _adapter(self, field: str) -> Any:
        declared = self._state.annotations.get(field, Any)
        return adapter_of(declared, f"the field {field} of {self.name}")

    def _terms(
        self, name: str, terms: ApprovalTerms | None, when: Pure | None, preview: Pure | None
    ) -> ApprovalTerms | None:
        if terms is None:
            if when is not None or preview is not None:
                raise DefinitionFault(
                    f"{self.name}/{name} says when an approval is needed, or what it shows, and not who gives it",
                    hint='Add approval=approval_terms(by=["ROLE"]), or use .approval(NAME, of=...).',
                )
            return None
        _refuse_odd_terms(terms)
        return terms if when is None else _conditional(terms)

    def _field_for(self, name: str, capability: Capability, into: str | None) -> str | None:
        if into is not None:
            if into:
                self._require_field(name, into)
                self._require_result(name, capability, into)
            return into or None
        result = capability.signature.result_type
        if result in (None, type(None)):
            return None
        fields = [field for field, type in self._state.annotations.items() if _holds(type, result)]
        if len(fields) == 1:
            return fields[0]
        found = f"{len(fields)} fields ({', '.join(fields)})" if fields else "no field"
        raise DefinitionFault(
            f"{capability.name} at {self.name}/{name} gives a {_shown(result)}, and the state has {found} of that type",
            hint='Say which with into=FIELD, or drop it with into="".',
        )

    def _arguments(self, name: str, capability: Capability, args: Pure | None) -> Any:
        if args is not None:
            return partial(_given, capability, self._reading(name, args))
        inputs = self._input.names if self._input is not None else frozenset[str]()
        for parameter, is_required in capability.signature.names().items():
            if is_required and parameter not in self._state.names and parameter not in inputs:
                wanted = (f"{self.name}/{name}", capability.name, parameter)
                if self._input is not None:
                    raise _missing(*wanted)
                self._wanted.append(wanted)  # a fragment may find it in the workflow that uses it
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

    def inner(self) -> Iterable[Chain[Any]]:
        """The chains in it."""
        return (chain for placed in self._placed for _, chain in placed.inner)

    def holds(self, wanted: Chain[Any]) -> bool:
        """Whether a chain is somewhere in it."""
        return any(chain is wanted or chain.holds(wanted) for chain in self.inner())

    def refuse_unmet(self, known: frozenset[str]) -> None:
        """DefinitionFault for a capability in a fragment whose argument no field of the workflow gives, and for a
        sub-workflow that was changed after it was placed."""
        for at, name, parameter in self._wanted:
            if parameter not in known:
                raise _missing(at, name, parameter)
        for at, workflow, was in self._started:
            if workflow.program.definition.digest != was:
                raise DefinitionFault(
                    f"{self.name}/{at} starts {workflow.name}, which was built further after that",
                    hint="Finish a workflow before another one starts it.",
                )
        for chain in self.inner():
            chain.refuse_unmet(known)

    def capabilities(self) -> dict[str, Capability]:
        """Every capability the chain may call, by name. DefinitionFault when two share a name."""
        return _merged([self._capabilities, *(chain.capabilities() for chain in self.inner())])


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

    @declaration
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
        for one in boundary or ():
            if not isinstance(one, Capability):  # type: ignore[reportUnnecessaryIsInstance]
                raise DefinitionFault(f"the boundary of {name} lists {one!r}, which is no capability")
        self._boundary = None if boundary is None else {one.name: one for one in boundary}
        self._initial = initial
        self._output = output
        self._on_bug = on_bug
        if initial is None:
            self._require_initial()
        if version < 1:
            raise DefinitionFault(f"the version of {name} is {version}; it is at least 1")
        if on_bug not in ("pause", "fail"):
            raise DefinitionFault(f"on_bug of {name} is {on_bug!r}; it is pause or fail")

    def _require_initial(self) -> None:
        missing = sorted(self._state.required - self.input_fields.names)
        if missing:
            raise DefinitionFault(
                f"the state of {self.name} needs {', '.join(missing)} to begin with, and the input has no such field",
                hint="Give the field a default, or pass initial=lambda input: State(...).",
            )

    def begin(self, input: Any) -> tuple[Values, Values]:
        """(input, first state) as plain JSON. InputFault when the input does not fit."""
        try:
            given = self.input_fields.accept(input)
            values = self.input_fields.write(given)
            first = self._state.write(self._state.read(values)) if self._initial is None else None
        except (ValueError, TypeError) as fault:
            raise InputFault(self.name, fault) from fault
        return values, self._state.write(self._initial(given)) if self._initial is not None else first or {}

    @property
    def program(self) -> Program:
        """The definition with its code. DefinitionFault for what only the whole graph shows."""
        self.refuse_unmet(self._state.names | self.input_fields.names)
        code: dict[str, Code] = {}
        body = self.block(self.name, code)
        called = self.capabilities()
        definition = Definition(
            name=self.name,
            version=self.version,
            input=structure(self.input_fields.schema),
            state=structure(self._state.schema),
            body=body,
            boundary=tuple(sorted(called if self._boundary is None else self._boundary)),
        )
        _require_approved(definition)
        output = self._reading("output", self._output) if self._output is not None else _whole
        return Program.of(definition, code, called, output, self.begin, self._on_bug)


class InputFault(DefinitionFault):
    """The input of a run does not fit its workflow; nothing was started."""

    def __init__(self, workflow: str, fault: Exception) -> None:
        problems = str(fault)
        if isinstance(fault, ValidationError):
            problems = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc']) or 'input'}: {problem['msg']}"
                for problem in fault.errors()
            )
        super().__init__(f"the input of {workflow} does not fit: {problems}")


@declaration
def approval_terms(
    *, by: Sequence[str], quorum: int = 1, each_role: bool = False, expires: str = "24h"
) -> ApprovalTerms:
    """Who must say yes, for ``.capability(..., approval=...)``."""
    terms = ApprovalTerms(
        by=tuple(by), quorum=quorum, each_role=each_role, expires_ms=_duration("the expiry of an approval", expires)
    )
    _refuse_odd_terms(terms)
    return terms


def _refuse_odd_terms(terms: ApprovalTerms) -> None:
    """What a ticket of a run would refuse, refused when it is written."""
    roles = terms.by
    if not roles or not all(isinstance(role, str) and role for role in roles) or len(set(roles)) != len(roles):  # type: ignore[reportUnnecessaryIsInstance]
        raise DefinitionFault(f"by={list(roles)!r} names no roles, or one twice; somebody has to be able to give it")
    if type(terms.quorum) is not int or not 1 <= terms.quorum <= limits.APPROVAL_SEATS_MAX:
        raise DefinitionFault(f"quorum is {terms.quorum!r}; it is 1 to {limits.APPROVAL_SEATS_MAX}")
    if len(roles) > limits.APPROVAL_SEATS_MAX or type(terms.each_role) is not bool:
        raise DefinitionFault(f"{len(roles)} roles are above {limits.APPROVAL_SEATS_MAX}, or each_role is no yes or no")
    if not 1 <= terms.expires_ms <= APPROVAL_MS_MAX:
        raise DefinitionFault(f"an approval that expires after {terms.expires_ms} ms; it is 1 to {APPROVAL_MS_MAX} ms")


def _duration(what: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except (ValueError, TypeError) as fault:
        raise DefinitionFault(f"{what}: {fault}") from fault


def _conditional(terms: ApprovalTerms) -> ApprovalTerms:
    return replace(terms, is_conditional=True)


def _require_approved(definition: Definition) -> None:
    """Every approval that stands for a call names one that is there."""
    order = list(walk(definition.body, definition.name))
    nodes = dict(order)
    places = {path: number for number, (path, _) in enumerate(order)}
    asked: dict[str, str] = {}
    for path, node in order:
        if not isinstance(node, Approval) or not node.of:
            continue
        call = nodes.get(node.of)
        if not isinstance(call, Call):
            raise DefinitionFault(f"{path} approves the call of {node.of}, and there is no such call beside it")
        if places[node.of] < places[path]:
            raise DefinitionFault(f"{path} approves the call of {node.of}, which comes before it")
        if node.of.count("*") > path.count("*"):
            raise DefinitionFault(
                f"{path} approves the call of {node.of}, which is made in every round",
                hint="Put the approval into the body, before the call.",
            )
        if call.approval is not None or node.of in asked:
            other = asked.get(node.of, "it has terms of its own")
            raise DefinitionFault(f"{path} approves the call of {node.of}, which is approved already ({other})")
        asked[node.of] = path


def _missing(at: str, capability: str, parameter: str) -> DefinitionFault:
    return DefinitionFault(
        f"{capability} at {at} takes {parameter!r}, which is no field of state or input",
        hint="Pass args=lambda state: {...}.",
    )


def _merged(tables: Iterable[Mapping[str, Capability]]) -> dict[str, Capability]:
    found: dict[str, Capability] = {}
    for table in tables:
        for name, capability in table.items():
            if found.setdefault(name, capability) is not capability:
                raise DefinitionFault(f"two capabilities are named {name!r}; their keys and records would be confused")
    return found


# The author's functions over plain JSON. Module functions, bound by partial: a program holds no closures of a chain.


def _read(state: Fields, input: Fields | None, function: Pure, count: int, values: Values, given: Values) -> Any:
    if count == 1:
        return function(state.read(fresh(values)))
    return function(state.read(fresh(values)), fresh(given) if input is None else input.read(fresh(given)))


def _stepped(state: Fields, function: Any, values: Values, given: Values) -> Values:
    result = function(values, given)
    if result is None:
        raise TypeError("it returned nothing; return the state, or a mapping of the fields that change")
    return _changed(state, values, result)


def _changed(state: Fields, values: Values, result: Any) -> Values:
    """The fields that a new state, or a mapping of some of its fields, changes; checked against the state's type."""
    if isinstance(result, Mapping):
        unknown = sorted(str(name) for name in set(result) - state.names)  # type: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if unknown:
            raise TypeError(f"it returned the fields {', '.join(unknown)}, which the state does not have")
        result = state.read({**values, **result})
    after = state.write(result)
    return {name: value for name, value in after.items() if name not in values or not is_same(values[name], value)}


def _put(state: Fields, field: str, values: Values, result: Any) -> Values:
    return {field: state.write(state.read({**values, field: result}))[field]}


def _nothing(values: Values, result: Any) -> Values:
    return {}


def _absorb(state: Fields, field: str | None) -> Any:
    return _nothing if field is None else partial(_put, state, field)


def _together(state: Fields, values: Values, changes: Values) -> Values:
    state.read({**values, **changes})
    return changes


def _selected(select: Any, values: Values, given: Values) -> Any:
    label = select(values, given)
    return label.value if isinstance(label, Enum) else label


def _listed(over: Any, item: Any, at_most: int, values: Values, given: Values) -> Any:
    """The items as plain JSON, each fit for the field it goes into. What is no list, or too long, is for the engine."""
    found = over(values, given)
    if not isinstance(found, (list, tuple)) or len(found) > at_most:  # type: ignore[reportUnknownArgumentType]
        return list(found) if isinstance(found, tuple) else found  # type: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    for one in plain_of(found):  # type: ignore[reportUnknownArgumentType]
        item.validate_python(one, strict=False)
    return plain_of(found)


def _subject(show: Any, values: Values, given: Values) -> Any:
    return plain_of(show(values, given))


def _words_of(condition: Pure | None) -> str:
    """What the author says of a condition: the first line of its docstring, or its name."""
    if condition is None:
        return ""
    said = (inspect.getdoc(condition) or "").partition("\n")[0]
    name = getattr(condition, "__name__", "<lambda>")
    return said or ("a condition on the state" if name == "<lambda>" else name.replace("_", " ").strip())


def _named(capability: Capability, names: Sequence[str], values: Values, given: Values) -> Values:
    found = {name: values[name] if name in values else given[name] for name in names if name in values or name in given}
    return capability.signature.complete(found)


def _given(capability: Capability, function: Any, values: Values, given: Values) -> Values:
    return capability.signature.complete(function(values, given))


def _input_for(function: Any, workflow: Workflow[Any, Any], values: Values, given: Values) -> Values:
    return workflow.input_fields.write(workflow.input_fields.accept(function(values, given)))


def _whole(values: Values, given: Values) -> Values:
    return values


def _no_subject(values: Values, given: Values) -> Values:
    return {}


def _holds(field: Any, result: Any) -> bool:
    """Whether a field of a state is of the type of a result: the same, or that or None."""
    return field == result or field == (result | None if isinstance(result, type) else result)


def _shown(type: Any) -> str:
    return getattr(type, "__name__", str(type))

"""A definition with the code of its nodes: what a run executes. The engine sees plain JSON; types are the app's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from setpoint.kernel.flow import Approval, ApprovalTerms, Call, Definition, Judge, walk
from setpoint.ports.effector import Effector

Values = dict[str, Any]
"""Fields of a state, or of an input, as plain JSON."""
Reading = Callable[[Values, Values], Any]
"""A pure function of (state, input)."""


@dataclass(frozen=True, slots=True)
class StepCode:
    apply: Callable[[Values, Values], Values]
    """The fields that change. Raises whatever the author's function raises."""


@dataclass(frozen=True, slots=True)
class CallCode:
    arguments: Reading
    """Complete and valid, or ArgumentsInvalid."""
    absorb: Callable[[Values, Any], Values]
    """The fields that change with a result."""
    needs_approval: Reading | None = None
    preview: Reading | None = None
    precondition: Reading | None = None
    precondition_words: str = ""
    """What people who approve the call are told of its precondition."""


@dataclass(frozen=True, slots=True)
class BranchCode:
    select: Reading


@dataclass(frozen=True, slots=True)
class MapCode:
    items: Reading
    gather: Callable[[Values, Any], Values]
    """The fields that change with the list of what the rounds gave."""


@dataclass(frozen=True, slots=True)
class ParallelCode:
    absorb: Callable[[Values, Any], Values]
    """What the branches changed, checked together."""


@dataclass(frozen=True, slots=True)
class RepeatCode:
    until: Reading


@dataclass(frozen=True, slots=True)
class WaitCode:
    absorb: Callable[[Values, Any], Values]


@dataclass(frozen=True, slots=True)
class ApprovalCode:
    show: Reading
    """What is approved, as plain JSON, when it is not a call."""
    absorb: Callable[[Values, Any], Values]
    needed: Reading | None = None
    preview: Reading | None = None


@dataclass(frozen=True, slots=True)
class ChildCode:
    program: Program
    input: Reading
    absorb: Callable[[Values, Any], Values]


@dataclass(frozen=True, slots=True)
class JudgeCode:
    show: Reading
    """The text the model sees beside the instructions; untrusted."""
    absorb: Callable[[Values, Any], Values]


Code = (
    StepCode
    | CallCode
    | BranchCode
    | MapCode
    | ParallelCode
    | RepeatCode
    | WaitCode
    | ApprovalCode
    | ChildCode
    | JudgeCode
)


_json = msgspec.json.Encoder(order="sorted")


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON. Python holds 1, 1.0 and True for equal; a log does not."""
    if one != other:
        return False
    return (isinstance(one, str) and isinstance(other, str)) or _json.encode(one) == _json.encode(other)


@dataclass(frozen=True, slots=True)
class Guard:
    """An approval that a call needs: its terms, whether it is needed in a state, and what people are shown."""

    terms: ApprovalTerms
    needed: Reading | None
    preview: Reading | None
    into: str = ""
    """The field that receives the answer; the approval does not rest on it."""


@dataclass(frozen=True, slots=True)
class Program:
    """``code`` by static path (rounds are ``*``); ``effectors`` by capability name."""

    definition: Definition
    code: Mapping[str, Code]
    effectors: Mapping[str, Effector]
    output: Reading
    begin: Callable[[Any], tuple[Values, Values]]
    """(input, first state) as plain JSON, checked."""
    on_bug: str = "pause"  # pause | fail
    guards: Mapping[str, Guard] = field(default_factory=dict[str, Guard])

    def effector(self, capability: str) -> Effector:
        """A capability that this workflow calls, or one that it starts. KeyError when none of them does."""
        found = self.effectors.get(capability)
        if found is not None:
            return found
        for code in self.code.values():
            if isinstance(code, ChildCode):
                with suppress(KeyError):
                    return code.program.effector(capability)
        raise KeyError(capability)

    def judges(self) -> Iterator[str]:
        """Paths of the nodes that ask a model, those of the workflows it starts included."""
        for path, node in walk(self.definition.body, self.definition.name):
            code = self.code.get(path)
            if isinstance(node, Judge):
                yield path
            elif isinstance(code, ChildCode):
                yield from (f"{path}>{inner}" for inner in code.program.judges())

    @classmethod
    def of(
        cls,
        definition: Definition,
        code: Mapping[str, Code],
        effectors: Mapping[str, Effector],
        output: Reading,
        begin: Callable[[Any], tuple[Values, Values]],
        on_bug: str = "pause",
    ) -> Program:
        return cls(definition, code, effectors, output, begin, on_bug, _guards(definition, code))


def _guards(definition: Definition, code: Mapping[str, Code]) -> dict[str, Guard]:
    """Calls that need an approval, by their own terms or by an approval node that names them."""
    found: dict[str, Guard] = {}
    nodes: Sequence[tuple[str, Any]] = list(walk(definition.body, definition.name))
    for path, node in nodes:
        own = code.get(path)
        if isinstance(node, Call) and node.approval is not None and isinstance(own, CallCode):
            found[path] = Guard(node.approval, own.needs_approval, own.preview)
        if isinstance(node, Approval) and node.of and isinstance(own, ApprovalCode):
            found[node.of] = Guard(node.terms, own.needed, own.preview, node.into)
    return found

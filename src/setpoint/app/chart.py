"""What a picture of a workflow says: the words and the colour of each node, and the whole as a Mermaid flowchart."""

from __future__ import annotations

from typing import Final

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
    Use,
    WaitFor,
)

# fill, stroke on light; fill, stroke on dark. Text is near-black or near-white: 7:1 at least on each fill.
COLOURS: Final[dict[str, tuple[str, str, str, str]]] = {
    "step": ("#f3f4f6", "#6b7280", "#2b3038", "#9aa2ae"),
    "wait": ("#ffffff", "#6b7280", "#16181d", "#9aa2ae"),
    "approval": ("#ede9fe", "#6d28d9", "#2f2454", "#a78bfa"),
    "judge": ("#fce7f3", "#be185d", "#4a1d35", "#f472b6"),
    "workflow": ("#e0e7ff", "#4338ca", "#252a57", "#818cf8"),
    "pure": ("#f0f9ff", "#0369a1", "#10293a", "#38bdf8"),
    "read": ("#e0f2fe", "#0369a1", "#10293a", "#38bdf8"),
    "reversible": ("#ccfbf1", "#0f766e", "#0e3733", "#2dd4bf"),
    "keyed": ("#dcfce7", "#15803d", "#123420", "#4ade80"),
    "compensable": ("#fef3c7", "#b45309", "#42300b", "#fbbf24"),
    "irreversible": ("#fee2e2", "#b91c1c", "#4a1919", "#f87171"),
    "branch": ("#ffffff", "#374151", "#16181d", "#c3c9d2"),
}


def words_of(node: AnyNode) -> tuple[str, ...]:
    """What a node is, in at most two short lines below its name."""
    match node:
        case Call(capability=contract, approval=terms):
            lines = (f"{contract.effect} · {contract.name}",)
            return lines if terms is None else (*lines, _asks(terms))
        case Approval(terms=terms, of=of):
            subject = f"for {of.rsplit('/', 1)[-1]}" if of else "to go on"
            return (_asks(terms), subject)
        case Child(workflow=workflow, version=version, effects=effects):
            worst = [effect for effect in EFFECT_CLASSES if effect in effects][-1:]
            return (f"runs {workflow}, version {version}", *(f"at worst {effect}" for effect in worst))
        case Judge(labels=labels):
            return (f"a model picks: {', '.join(labels)}" if labels else "a model writes",)
        case WaitFor(signal=signal, timeout_ms=timeout_ms):
            return (f"waits for {signal}", f"at most {duration(timeout_ms)}")
        case Sleep(ms=ms):
            return (f"sleeps {duration(ms)}",)
        case Map(item=item, at_most=at_most):
            return (f"for each {item}, at most {at_most}",)
        case Repeat(at_most=at_most):
            return (f"again, at most {at_most} times",)
        case Parallel():
            return ("all at once",)
        case Use(fragment=fragment, name=name):
            return () if fragment == name else (f"fragment {fragment}",)
        case _:
            return ()


def kind_of(node: AnyNode) -> str:
    """The colour of a node: its effect class, or what else it is."""
    match node:
        case Call(capability=contract):
            return contract.effect
        case Approval():
            return "approval"
        case Child():
            return "workflow"
        case Judge():
            return "judge"
        case WaitFor() | Sleep():
            return "wait"
        case Branch():
            return "branch"
        case _:
            return "step"


def _asks(terms: ApprovalTerms) -> str:
    seats = len(terms.by) if terms.each_role else terms.quorum
    joined = (" and " if terms.each_role else " or ").join(terms.by)
    count = f"{seats} of " if seats > 1 and not terms.each_role else ""
    return f"asks {count}{joined}" + (" if needed" if terms.is_conditional else "")


def duration(ms: int) -> str:
    """A time in its largest whole unit."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= size and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


# Mermaid


def mermaid(definition: Definition) -> str:
    """A Mermaid flowchart. Names and labels are escaped: none of them can be read as syntax."""
    return "\n".join(_Chart().drawn(definition)) + "\n"


class _Chart:
    def __init__(self) -> None:
        self._count = 0
        self._lines: list[str] = []

    def drawn(self, definition: Definition) -> list[str]:
        self._lines = ["flowchart TD"]
        start = self._box(f'(["{_quoted(definition.name)}"])', "branch")
        ends = self._block(definition.body, [(start, "")], "  ")
        end = self._box('(["end"])', "branch")
        self._arrows(ends, end, "  ")
        for kind, (fill, stroke, _, _) in COLOURS.items():
            if any(line.endswith(f":::{kind}") for line in self._lines):
                dashed = ",stroke-dasharray:4 3" if kind == "wait" else ""
                self._lines.append(f"  classDef {kind} fill:{fill},stroke:{stroke},color:#111827{dashed}")
        return self._lines

    def _box(self, shape: str, kind: str, indent: str = "  ") -> str:
        name = f"n{self._count}"
        self._count += 1
        self._lines.append(f"{indent}{name}{shape}:::{kind}")
        return name

    def _arrows(self, ends: list[tuple[str, str]], to: str, indent: str) -> None:
        for end, label in ends:
            self._lines.append(f'{indent}{end} -->|"{_quoted(label)}"| {to}' if label else f"{indent}{end} --> {to}")

    def _block(self, block: Block, ends: list[tuple[str, str]], indent: str) -> list[tuple[str, str]]:
        """Draw a block behind ``ends`` (nodes with the label of the arrow that leaves them); gives its own ends."""
        for node in block:
            ends = self._node(node, ends, indent)
        return ends

    def _node(self, node: AnyNode, ends: list[tuple[str, str]], indent: str) -> list[tuple[str, str]]:
        text = "<br/>".join(_quoted(line) for line in (node.name, *words_of(node)))
        match node:
            case Branch(cases=cases):
                fork = self._box(f'{{"{text}"}}', "branch", indent)
                self._arrows(ends, fork, indent)
                return [end for label in cases for end in self._block(cases[label], [(fork, label)], indent)]
            case Parallel(branches=branches):
                fork = self._box(f'[["{text}"]]', "step", indent)
                self._arrows(ends, fork, indent)
                return [end for label in branches for end in self._framed(label, branches[label], [(fork, "")], indent)]
            case Map(body=body) | Repeat(body=body) | Use(body=body):
                return self._framed(": ".join((node.name, *words_of(node))), body, ends, indent)
            case Approval():
                box = self._box(f'{{{{"{text}"}}}}', "approval", indent)
            case _:
                box = self._box(f'["{text}"]', kind_of(node), indent)
        self._arrows(ends, box, indent)
        return [(box, "")]

    def _framed(self, title: str, block: Block, ends: list[tuple[str, str]], indent: str) -> list[tuple[str, str]]:
        self._lines.append(f'{indent}subgraph g{self._count}["{_quoted(title)}"]')
        self._count += 1
        ends = self._block(block, ends, indent + "  ")
        self._lines.append(f"{indent}end")
        return ends


def _quoted(text: str) -> str:
    """Inside a quoted label. Every character that Mermaid or HTML could read is written by its number."""
    return "".join(f"#{ord(c)};" if c in _READ or not c.isprintable() else c for c in text)


_READ: Final = frozenset('"#&<>`;\\|{}[]()')

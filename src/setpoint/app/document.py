"""A YAML text as plain values in which every value knows where it stands.

The subset is what a manifest needs and no more: mappings with plain text keys, lists, strings, integers, decimals,
true, false and null. Everything that surprises is refused with its position: duplicate keys, tags, merge keys, aliases
that expand without bound, the YAML 1.1 readings of ``on`` or ``010``.

Lines and columns are 1-based, as compilers and editors count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

BYTES_MAX: Final = 256 * 1024
NODES_MAX: Final = 20_000
"""After expansion of aliases; a manifest has some hundreds."""
DEPTH_MAX: Final = 32

Path = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _TAG + name for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_DECIMAL: Final = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, where it is, and what to write instead."""

    file: str
    line: int
    column: int
    path: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: " + (f"{self.path}: " if self.path else "")
        return where + self.message + (f"; {self.suggestion}" if self.suggestion else "")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a value stands, where its key does (the same for a list item), and how a scalar was written."""

    line: int
    column: int
    key_line: int
    key_column: int
    text: str = ""
    style: str = ""  # "" plain, one of ' " | >


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    file: str
    value: Any
    marks: dict[Path, Mark]
    lines: tuple[str, ...]

    def mark(self, path: Path) -> Mark:
        """The mark of ``path``, or of the nearest enclosing value that exists."""
        while path not in self.marks and path:
            path = path[:-1]
        return self.marks.get(path, Mark(1, 1, 1, 1))

    def problem(self, path: Path, message: str, suggestion: str = "", *, at_key: bool = False) -> Problem:
        mark = self.mark(path)
        line, column = (mark.key_line, mark.key_column) if at_key else (mark.line, mark.column)
        return Problem(self.file, line, column, dotted(path), message, suggestion)

    def inside(self, path: Path, line: int, column: int) -> tuple[int, int]:
        """File position of a 1-based position inside a string value; the value's own where it cannot be told."""
        mark = self.mark(path)
        if mark.style in ("|", ">"):
            return self._inside_block(mark, line, column)
        start = mark.column - 1 + (mark.style in ("'", '"'))
        written = self.lines[mark.line - 1][start:] if mark.line <= len(self.lines) else ""
        # Escapes and folded lines move what follows; then the start of the value is the honest answer.
        if line == 1 and written.startswith(mark.text):
            return mark.line, start + column
        return mark.line, mark.column

    def _inside_block(self, mark: Mark, line: int, column: int) -> tuple[int, int]:
        at = mark.line + line if mark.style == "|" else mark.line + 1
        if at > len(self.lines):
            return mark.line, mark.column
        first = next((text for text in self.lines[mark.line :] if text.strip()), "")
        indent = len(first) - len(first.lstrip(" "))
        return at, indent + column


def dotted(path: Path) -> str:
    """``("spec", "done", 1, "expr")`` as ``spec.done[1].expr``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def parse_documents(data: bytes, file: str) -> tuple[list[Document], list[Problem]]:
    """Every non-empty document of the text, and what is wrong with its YAML. Either list may be empty, never both."""
    try:
        text = _decode(data)
        lines = tuple(text.splitlines())
        nodes = _compose(text)
    except _Broken as broken:
        return [], [Problem(file, broken.line, broken.column, "", broken.message, broken.suggestion)]
    documents: list[Document] = []
    problems: list[Problem] = []
    for node in nodes:
        if _is_empty(node):
            continue
        reader = _Reader(file)
        value = reader.value(node, (), node.start_mark)
        documents.append(Document(file, value, reader.marks, lines))
        problems += reader.problems
    if not documents:
        problems.append(Problem(file, 1, 1, "", "the file holds no document", "start with `setpoint init`"))
    return documents, problems


@dataclass
class _Broken(Exception):
    line: int
    column: int
    message: str
    suggestion: str = ""


def _decode(data: bytes) -> str:
    if len(data) > BYTES_MAX:
        raise _Broken(1, 1, f"the file has {len(data)} bytes, above the bound of {BYTES_MAX}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        before = data[: fault.start]
        line_start = before.rfind(b"\n") + 1
        raise _Broken(
            before.count(b"\n") + 1,
            len(before[line_start:].decode("utf-8", "replace")) + 1,
            f"byte 0x{data[fault.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd:
        line_start = text.rfind("\n", 0, odd.start()) + 1
        raise _Broken(
            text.count("\n", 0, odd.start()) + 1,
            odd.start() - line_start + 1,
            f"the character U+{ord(odd[0]):04X} may not stand in YAML",
            "remove it",
        )
    return text


def _compose(text: str) -> list[yaml.Node]:
    """The node trees. The event stream is walked first: the composer recurses, so depth is bounded before it runs."""
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
                if depth > DEPTH_MAX:
                    raise _at(event.start_mark, f"nested deeper than {DEPTH_MAX} levels")
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
        return list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        message = f"not YAML: {fault.problem or fault.context}"
        if mark is None:
            raise _Broken(1, 1, message) from None
        raise _at(mark, message, _yaml_advice(fault)) from None
    except yaml.YAMLError as fault:
        raise _Broken(1, 1, f"not YAML: {str(fault).splitlines()[0]}") from None
    except RecursionError:
        # The flow scanner itself recurses on pathological input that the depth bound has not seen yet.
        raise _Broken(1, 1, f"nested deeper than {DEPTH_MAX} levels") from None


def _at(mark: yaml.Mark, message: str, suggestion: str = "") -> _Broken:
    return _Broken(mark.line + 1, mark.column + 1, message, suggestion)


def _yaml_advice(fault: yaml.MarkedYAMLError) -> str:
    problem = fault.problem or ""
    if "'\\t'" in problem:
        return "indent with spaces"
    if "mapping values are not allowed" in problem:
        return "quote a text that holds ': '"
    if "found character '@'" in problem or "found character '`'" in problem or "found character '%'" in problem:
        return "quote a text that starts with that character"
    return ""


def _is_empty(node: yaml.Node | None) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None)


@dataclass
class _Reader:
    """Turns nodes into values; collects marks and problems; one document."""

    file: str
    marks: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0
    open: set[int] = field(default_factory=set)

    def value(self, node: yaml.Node, path: Path, key: yaml.Mark) -> Any:
        start = node.start_mark
        text, style = (node.value, node.style or "") if isinstance(node, yaml.ScalarNode) else ("", "")
        self.marks[path] = Mark(start.line + 1, start.column + 1, key.line + 1, key.column + 1, text, style)
        self.nodes += 1
        if self.nodes > NODES_MAX:
            if self.nodes == NODES_MAX + 1:
                self.complain(node, path, f"more than {NODES_MAX} values after its aliases are expanded")
            return None
        if id(node) in self.open:
            self.complain(node, path, "an alias that holds itself")
            return None
        self.open.add(id(node))
        try:
            return self.dispatch(node, path)
        finally:
            self.open.discard(id(node))

    def dispatch(self, node: yaml.Node, path: Path) -> Any:
        if node.tag not in _TAGS:
            tag = node.tag.replace(_TAG, "!!")
            self.complain(node, path, f"the tag {tag!r} is not understood here", "remove it")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index), item.start_mark) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self.scalar(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.complain(key, path, "a key must be a plain word")
                continue
            name: str = key.value
            if name == "<<" and key.style is None:
                self.complain(key, path, "merge keys (<<) are not understood here", "write the keys out")
            elif name in result:
                first = self.marks[(*path, name)]
                where = f"first written in line {first.key_line}"
                self.complain(key, (*path, name), f"the key {name!r} stands here twice", where)
            elif self.nodes <= NODES_MAX and self.is_clean(key, name, path):
                result[name] = self.value(item, (*path, name), key.start_mark)
        return result

    def scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text: str = node.value
        if not self.is_clean(node, text, path):
            return ""
        tag = node.tag[len(_TAG) :]
        if tag == "null":
            return None
        if tag == "bool":
            # PyYAML reads YAML 1.1, where on, off, yes and no are booleans too. They stay booleans, so that a place
            # that wants a text says "quote it" instead of taking a word that other readers take otherwise.
            return text.lower() in ("true", "yes", "on")
        if tag == "int" and _INTEGER.fullmatch(text):
            return int(text)
        if tag == "float" and _DECIMAL.fullmatch(text):
            return float(text)  # only its type matters: amounts are read from the text, exactly
        return text  # also 010, 0x1f, 1:30, 1_000, .inf, dates: words whose reading differs between readers

    def is_clean(self, node: yaml.Node, text: str, path: Path) -> bool:
        """No system call takes a NUL, and no UTF-8 a lone surrogate; both can be written as escapes."""
        clean = "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
        if not clean:
            self.complain(node, path, "a text may hold no NUL and no lone surrogate")
        return clean

    def complain(self, node: yaml.Node, path: Path, message: str, suggestion: str = "") -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.file, mark.line + 1, mark.column + 1, dotted(path), message, suggestion))

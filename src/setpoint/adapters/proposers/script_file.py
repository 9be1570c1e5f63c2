"""A script of proposals, read from YAML strictly (docs/how-to/models.md).

Every problem is reported at once as ``file:line:column: what``, with the nearest valid name. Values keep what was
written: money is decimal text until it is whole micro-dollars, and scalars that YAML 1.1 would turn into something
surprising (``yes``, ``0x1f``, ``12:30``, dates) must be quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, cast

import yaml

from setpoint.adapters.proposers.wire import micros_of_usd, plain_text, raw_call
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.proposal import RawCall, StopReason, Usage

ErrorKind = Literal["overloaded", "rate_limited", "refused", "broken_stream", "timeout"]
ERROR_KINDS: Final = ("overloaded", "rate_limited", "refused", "broken_stream", "timeout")
STOPS: Final = ("end_turn", "tool_use", "length", "stop_sequence", "refusal")
SCRIPT_BYTES_MAX: Final = 16 << 20
"""A script of 10,000 turns with 1 KiB edits has about 10 MiB."""
DEPTH_MAX: Final = 64
PROBLEMS_SHOWN_MAX: Final = 20
VALUES_MAX: Final = 1_000_000
"""Values read from one script, aliases counted each time they are used: a file of aliases of aliases ends here."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: ten times faster, the same nodes and places."""

_TOP_KEYS: Final = ("usage", "on_end", "proposals")
_USAGE_KEYS: Final = ("input_tokens", "output_tokens", "cached_tokens", "usd")
_ENTRY_KEYS: Final = ("thought", "calls", "raw", "text", "stop", "error", "retry_after", "sleep", "when", "usage")
_CALL_KEYS: Final = ("name", "arguments")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True, slots=True)
class Said:
    """One reply of the script."""

    text: str
    calls: tuple[RawCall, ...]
    raw: str | None
    stop: StopReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """One failure of the script; the tokens spent on it are those the entry states itself."""

    kind: ErrorKind
    retry_after_ms: int | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class Entry:
    """What the proposer does at one position, after ``sleep_ms``, if the prompt holds ``note_contains``."""

    act: Said | Failed
    sleep_ms: int
    note_contains: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    entries: tuple[Entry, ...]
    repeat_last: bool


def load_script(path: Path) -> Script:
    """The script at ``path``. UsageFault lists every problem with its place."""
    try:
        with path.open("rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageFault(
            f"The script {path} cannot be read: {error.strerror}.", hint="A relative path starts at the manifest."
        ) from error
    if len(data) > SCRIPT_BYTES_MAX:
        raise UsageFault(f"The script {path} has more than {SCRIPT_BYTES_MAX} bytes; split it.")
    problems = _Problems(path)
    try:
        node = yaml.compose(data.decode("utf-8"), Loader=_LOADER)
    except UnicodeDecodeError as error:
        raise UsageFault(f"{path}: not UTF-8 at byte {error.start}.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise UsageFault(f"{place}: not YAML: {error.problem}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageFault(f"{path}: not YAML: {error}.") from error
    script = _script(node, problems)
    problems.raise_if_any()
    return script


class _Problems:
    """Collects what is wrong, so that a user sees all of it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[str] = []
        self._values = 0

    def count(self, node: yaml.Node | None) -> None:
        """One more value was read; UsageFault when there are too many."""
        self._values += 1
        if self._values > VALUES_MAX:
            self.add(node, f"the script has more than {VALUES_MAX} values; split it, or use fewer aliases")
            self.raise_if_any()

    def add(self, node: yaml.Node | None, message: str) -> None:
        line, column = (node.start_mark.line + 1, node.start_mark.column + 1) if node else (1, 1)
        self._found.append(f"{self._path}:{line}:{column}: {message}")

    def raise_if_any(self) -> None:
        if not self._found:
            return
        shown = self._found[:PROBLEMS_SHOWN_MAX]
        if len(self._found) > len(shown):
            shown.append(f"... and {len(self._found) - len(shown)} more")
        raise UsageFault("\n".join(shown))


# From nodes to a script


def _script(node: yaml.Node | None, problems: _Problems) -> Script:
    fields = _fields(node, _TOP_KEYS, "a script", problems)
    default = _usage(fields["usage"], Usage(), problems) if "usage" in fields else Usage(usd_micros=0)
    on_end = "exhausted"
    if "on_end" in fields:
        on_end = _choice(fields["on_end"], ("exhausted", "repeat"), "on_end", problems)
    proposals = fields.get("proposals")
    if not isinstance(proposals, yaml.SequenceNode):
        problems.add(proposals or node, "a script needs 'proposals', a list")
        return Script((), False)
    entries = tuple(_entry(item, default, problems) for item in proposals.value)
    return Script(entries, on_end == "repeat")


def _entry(node: yaml.Node, default: Usage, problems: _Problems) -> Entry:
    fields = _fields(node, _ENTRY_KEYS, "a proposal", problems)
    act = _failed(fields, problems) if "error" in fields else _said(node, fields, default, problems)
    return Entry(
        act=act,
        sleep_ms=_duration_ms(fields["sleep"], problems) if "sleep" in fields else 0,
        note_contains=_when(fields["when"], problems) if "when" in fields else None,
        line=node.start_mark.line + 1,
    )


def _failed(fields: dict[str, yaml.Node], problems: _Problems) -> Failed:
    for key in ("calls", "raw", "text", "thought", "stop"):
        if key in fields:
            problems.add(fields[key], f"a proposal with 'error' says nothing; remove {key!r}")
    kind = _choice(fields["error"], ERROR_KINDS, "error", problems)
    retry_after_ms = _duration_ms(fields["retry_after"], problems) if "retry_after" in fields else None
    usage = _usage(fields["usage"], Usage(), problems) if "usage" in fields else Usage()
    return Failed(cast("ErrorKind", kind), retry_after_ms, usage)


def _said(node: yaml.Node, fields: dict[str, yaml.Node], default: Usage, problems: _Problems) -> Said:
    if not fields.keys() & {"calls", "raw", "text", "thought"}:
        problems.add(node, "a proposal needs one of 'calls', 'raw', 'text' or 'error'")
    if {"calls", "raw"} <= fields.keys():
        problems.add(fields["raw"], "'raw' is the whole reply as the model emitted it; remove 'calls' or 'raw'")
    if "retry_after" in fields:
        problems.add(fields["retry_after"], "'retry_after' belongs to an 'error'")
    texts = [_string(fields[key], key, problems) for key in ("thought", "text") if key in fields]
    calls = _calls(fields["calls"], problems) if "calls" in fields else ()
    raw = _string(fields["raw"], "raw", problems) if "raw" in fields else None
    stop = "tool_use" if calls or raw is not None else "end_turn"
    if "stop" in fields:
        stop = _choice(fields["stop"], STOPS, "stop", problems)
    usage = _usage(fields["usage"], default, problems) if "usage" in fields else default
    return Said("\n".join(texts), calls, raw, cast("StopReason", stop), usage)


def _calls(node: yaml.Node, problems: _Problems) -> tuple[RawCall, ...]:
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, "'calls' must be a list of {name, arguments}")
        return ()
    calls: list[RawCall] = []
    for item in node.value:
        fields = _fields(item, _CALL_KEYS, "a call", problems)
        # A call without a name, or with null or text for arguments, is a malformed proposal: it is what some scripts
        # are written to play, so it is said as it stands and judged like any model's.
        name = _value(fields["name"], problems) if "name" in fields else None
        calls.append(raw_call(name, _value(fields["arguments"], problems) if "arguments" in fields else {}))
    return tuple(calls)


def _when(node: yaml.Node, problems: _Problems) -> str | None:
    fields = _fields(node, ("note_contains",), "'when'", problems)
    if "note_contains" not in fields:
        problems.add(node, "'when' needs 'note_contains'")
        return None
    return _string(fields["note_contains"], "note_contains", problems)


def _usage(node: yaml.Node, default: Usage, problems: _Problems) -> Usage:
    """``default`` with the fields that are written replaced."""
    fields = _fields(node, _USAGE_KEYS, "'usage'", problems)
    usage = default if default.usd_micros is not None else replace(default, usd_micros=0)
    for key in ("input_tokens", "output_tokens", "cached_tokens"):
        if key in fields:
            text = _scalar_text(fields[key])
            if text is None or not re.fullmatch(r"[0-9]{1,12}", text):
                problems.add(fields[key], f"{key!r} must be a whole number of tokens")
            else:
                usage = replace(usage, **{key: int(text)})  # type: ignore[arg-type]
    if "usd" in fields:
        try:
            usage = replace(usage, usd_micros=micros_of_usd(_scalar_text(fields["usd"]) or ""))
        except ValueError as error:
            problems.add(fields["usd"], str(error))
    return usage


# Nodes


def _fields(node: yaml.Node | None, known: tuple[str, ...], what: str, problems: _Problems) -> dict[str, yaml.Node]:
    """The fields of a mapping by name; unknown and repeated names are problems."""
    problems.count(node)
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{what} must be a mapping with {', '.join(known)}")
        return {}
    fields: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        key = _scalar_text(key_node) or ""
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            problems.add(key_node, f"{what} has no key {key!r}; {hint}")
        elif key in fields:
            problems.add(key_node, f"the key {key!r} occurs twice")
        else:
            fields[key] = value
    return fields


def _scalar_text(node: yaml.Node) -> str | None:
    return cast("str", node.value) if isinstance(node, yaml.ScalarNode) else None


def _string(node: yaml.Node, key: str, problems: _Problems) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:str":
        return plain_text(node.value)
    problems.add(node, f"{key!r} must be a text; put it in quotes")
    return ""


def _choice(node: yaml.Node, known: tuple[str, ...], key: str, problems: _Problems) -> str:
    text = _scalar_text(node)
    if text in known:
        return cast("str", text)
    near = get_close_matches(text or "", known, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    problems.add(node, f"{key!r} is {text!r}; it must be one of {', '.join(known)}{hint}")
    return known[0]


def _duration_ms(node: yaml.Node, problems: _Problems) -> int:
    text = _scalar_text(node) or ""
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text)
    if match is None:
        problems.add(node, f"{text!r} is not a duration; write a whole number and a unit, such as 300ms, 2s, 5m")
        return 0
    return int(match[1]) * _UNITS_MS[match[2]]


def _value(node: yaml.Node, problems: _Problems, depth: int = 0) -> Any:
    """A JSON value. Depth is bounded, so an alias to a parent ends as a problem."""
    problems.count(node)
    if depth > DEPTH_MAX:
        problems.add(node, f"nested more than {DEPTH_MAX} levels deep")
        return None
    match node:
        case yaml.MappingNode():
            return _mapping(node, problems, depth)
        case yaml.SequenceNode():
            return [_value(item, problems, depth + 1) for item in node.value]
        case yaml.ScalarNode():
            return _scalar(node, problems)
        case _:
            problems.add(node, "unexpected YAML")
            return None


def _mapping(node: yaml.MappingNode, problems: _Problems, depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key_node, item in node.value:
        key = _scalar_text(key_node)
        if key is None or key_node.tag == "tag:yaml.org,2002:merge":
            problems.add(key_node, "a key must be a text; JSON has no other (use 'raw' to play other replies)")
        elif key in value:
            problems.add(key_node, f"the key {key!r} occurs twice (use 'raw' to play such a reply)")
        else:
            value[key] = _value(item, problems, depth + 1)
    return value


_SCALARS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "null": (r"null|Null|NULL|~|", lambda _: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"-?(0|[1-9][0-9]*)", int),
    "float": (r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", float),
}


def _scalar(node: yaml.ScalarNode, problems: _Problems) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return node.value
    pattern, read = _SCALARS.get(kind, ("(?!)", str))
    if len(node.value) > 300 or not re.fullmatch(pattern, node.value):
        problems.add(node, f"YAML reads {node.value!r} as {kind}; put it in quotes if it is a text")
        return None
    return read(node.value)

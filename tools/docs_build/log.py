"""reference/events.md."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import msgspec

from docs_build.markdown import code, page, prose, table
from setpoint.kernel import events, run_events, session_events

_FIELD = re.compile(r"^    (\w+): (.+?)(?: = (.+?))?(?:  # (.*))?$")
_EXAMPLE = """```json
{"stream": "tr-01h...", "seq": 12, "turn": 3, "type": "ToolIntent", "v": 1, "at": "2026-01-01T00:00:00.000Z",
 "prev": "sha256:...", "hash": "sha256:...", "data": {"ordinal": 0, "tool": "file_edit", "...": "..."}}
```"""


def page_of_events() -> str:
    blocks = [
        (
            "A trajectory is a stream of events, and so is a run or a session; its state is what folding them gives. "
            "The envelope is the same in the store, on standard output (`--json`) and in exports:"
        ),
        _EXAMPLE,
        (
            "`hash` is over the envelope without itself, `prev` is the hash of the event before: a log that was "
            "altered or shortened is found by reading it. `data` holds strings, whole numbers, true, false, null, "
            "lists and objects; money is in millionths of a dollar and time in milliseconds, so no fraction is "
            'ever written. Fields at their default are left out. A long text is replaced by `{"ref": '
            '"sha256:...", "bytes": n}`.'
        ),
    ]
    section = ""
    for name, cls in events.EVENT_TYPES.items():
        if _sections().get(name, section) != section:
            section = _sections()[name]
            blocks.append(f"## {section}")
        blocks.append(_event(name, cls))
    for section, module in (("Runs of workflows", run_events), ("Sessions", session_events)):
        blocks.append(f"## {section}")
        blocks += [_event(name, cls) for name, cls in _structs(module) if issubclass(cls, events.Event)]
    blocks.append("## Parts of events")
    parts = {name: cls for module in _MODULES for name, cls in _structs(module) if not issubclass(cls, events.Event)}
    blocks += [_event(name, part) for name, part in parts.items()]
    return page("Events", "`src/setpoint/kernel/events.py`, `run_events.py` and `session_events.py`", *blocks)


_MODULES = (events, run_events, session_events)


def _structs(module: ModuleType) -> list[tuple[str, type[Any]]]:
    """The structs a module defines, in the order of its source."""
    found = [(name, v) for name, v in vars(module).items() if isinstance(v, type) and issubclass(v, msgspec.Struct)]
    return [(name, value) for name, value in found if value.__module__ == module.__name__]


def _event(name: str, cls: type[Any]) -> str:
    lines = [f"### {name}", "", prose(inspect.getdoc(cls)) if cls.__doc__ else ""]
    rows = fields_of(cls)
    if rows:
        lines += ["", table(("field", "type", "default", "meaning"), rows)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def fields_of(cls: type[Any]) -> list[tuple[str, str, str, str]]:
    """Name, type, default and comment of each field as written."""
    rows: list[tuple[str, str, str, str]] = []
    for line in inspect.getsource(cls).splitlines():
        found = _FIELD.match(line)
        if found and found[1] in cls.__struct_fields__:
            name, kind, default, comment = found.groups()
            rows.append((code(name), code(kind), code(default or ""), prose(comment)))
    missing = set(cls.__struct_fields__) - {row[0].strip("`") for row in rows}
    if missing:
        raise ValueError(f"{cls.__name__}: the source shows no line for {', '.join(sorted(missing))}")
    return rows


def _sections() -> dict[str, str]:
    """Event name -> the comment line it stands under."""
    found: dict[str, str] = {}
    section = ""
    for line in inspect.getsource(events).splitlines():
        if line.startswith("# "):
            section = line[2:].rstrip(".")
        elif started := re.match(r"class (\w+)\(Event", line):
            found[started[1]] = section
    return found

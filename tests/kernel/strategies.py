"""Random events of every type, made from the types themselves, so that a new event is covered the day it is added."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from setpoint.kernel.events import EVENT_TYPES, Event
from setpoint.kernel.transitions import STATES

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
_WORDS = {
    "state": st.sampled_from([state for state in STATES if state in ("COMPLETED", "FAILED", "CANCELLED")]),
    "action": st.sampled_from(["pause", "resume", "cancel", "kill", "answer", "none", "rollback"]),
    "outcome": st.sampled_from(["kept", "rolled_back", "unchanged", "acted", "refused", "model_failed", "asked"]),
    "phase": st.sampled_from(["baseline", "turn", "final"]),
    "verdict": st.sampled_from(["pass", "fail", "missing"]),
    "tier": st.sampled_from(["steer", "backtrack", "next_model", "ask", "halt", "namespaces"]),
    "tool": st.sampled_from(["shell_exec", "file_edit", "file_read"]),
    "check": st.sampled_from(["done/unit", "done/golden", "invariants/x"]),
    "effect": st.sampled_from(["pure", "read", "reversible", "irreversible"]),
    "route": st.sampled_from(["scripted:a", "scripted:b"]),
}
_REASON = st.sampled_from(["invariant", "interrupted", "stall", "operator", "LOOP_DETECTED", "RATE"])


def of(kind: type[Event], words: bool = False) -> st.SearchStrategy[Any]:
    """Events of one type; ``words``: fields hold words of their vocabulary, as the engine writes them."""
    hints = typing.get_type_hints(kind)
    fields = {}
    for field in msgspec.structs.fields(kind):
        strategy = _of_hint(hints[field.name], words)
        if words and field.name in _WORDS:
            strategy = _WORDS[field.name]
        elif words and field.name == "reason":
            strategy = _REASON
        elif words and field.name in ("ordinal", "savepoint", "index", "distance", "attempt", "fence"):
            strategy = st.integers(0, 5)
        elif words and hints[field.name] is int:
            strategy = st.integers(0, 10**6)
        if not field.required:
            fields[field.name] = strategy | st.just(_default(field))
        else:
            fields[field.name] = strategy
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


def any_event(words: bool = False) -> st.SearchStrategy[Any]:
    return st.one_of([of(kind, words) for kind in EVENT_TYPES.values()])


def _default(field: Any) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _of_hint(hint: Any, words: bool) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([_of_hint(part, words) for part in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(_of_hint(arguments[0], words), max_size=3)
    if origin is tuple:
        return st.tuples(*[_of_hint(part, words) for part in arguments])
    if origin is dict:
        return st.dictionaries(TEXT, JSON, max_size=3)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return of(hint, words)  # type: ignore[arg-type]
    plain = {str: TEXT, int: INTEGERS, bool: st.booleans(), type(None): st.none()}
    return plain[hint]

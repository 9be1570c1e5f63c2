"""Is the call well formed? Names, JSON Schema, structure (the first of three gates)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from setpoint.kernel.proposal import Call, Malformed
from setpoint.kernel.ruling import Refusal
from setpoint.phases.p3_gate.tools import Tool
from setpoint.ports.proposer import ToolSpec

_VALIDATORS_MAX: Final = 256


def refuse_malformed(bad: Malformed) -> Refusal:
    """The typed refusal of something that was no call at all."""
    reason = "CUT_OFF" if bad.reason == "cut_off" else "MALFORMED"
    if bad.reason == "too_many_calls":
        return Refusal(bad.ordinal, bad.name, "resource", "TOO_MANY_CALLS", bad.pointer, bad.message)
    return Refusal(bad.ordinal, bad.name, "syntactic", reason, bad.pointer, f"{bad.reason}: {bad.message}")


def check_schema(call: Call, tool: Tool) -> Refusal | None:
    """The first schema violation with its JSON pointer, None when there is none."""
    validator = _validator_of(tool)
    for error in () if validator.is_valid(call.arguments) else validator.iter_errors(call.arguments):
        pointer = "/arguments" + "".join(f"/{_escape(step)}" for step in error.instance_path)
        allowed = ", ".join(sorted(tool.spec.schema["properties"]))
        message = f"{error.message}; {tool.name} takes: {allowed}"
        return Refusal(call.ordinal, call.name, "syntactic", "SCHEMA", pointer, message[:600], call.digest)
    if call.name == "file_read" and call.arguments.get("end", 1 << 60) < call.arguments.get("start", 1):
        message = f"end {call.arguments['end']} lies before start {call.arguments.get('start', 1)}"
        return Refusal(call.ordinal, call.name, "syntactic", "STRUCTURE", "/arguments/end", message, call.digest)
    if call.name == "file_edit" and call.arguments["old_str"] == call.arguments["new_str"]:
        message = "old_str and new_str are equal: the edit would change nothing"
        return Refusal(call.ordinal, call.name, "syntactic", "STRUCTURE", "/arguments/new_str", message, call.digest)
    return None


def violation(schema: dict[str, Any], arguments: Any) -> tuple[str, str] | None:
    """The first violation of any JSON Schema, as (JSON pointer, message); None when there is none."""
    validator = _validator("", msgspec.json.encode(schema, order="sorted"))
    for error in () if validator.is_valid(arguments) else validator.iter_errors(arguments):
        return "".join(f"/{_escape(step)}" for step in error.instance_path), str(error.message)[:600]
    return None


def _escape(step: Any) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


_validators: dict[int, tuple[ToolSpec, Any]] = {}
"""By identity: a schema is a mutable mapping, and writing it out as a key costs more than the validation."""


def _validator_of(tool: Tool) -> Any:
    known = _validators.get(id(tool.spec))
    if known is not None and known[0] is tool.spec:
        return known[1]
    if len(_validators) >= _VALIDATORS_MAX:
        _validators.clear()
    validator = _validator(tool.name, msgspec.json.encode(tool.spec.schema))
    _validators[id(tool.spec)] = (tool.spec, validator)  # holding the spec keeps its id from being given to another
    return validator


@lru_cache(maxsize=_VALIDATORS_MAX)
def _validator(name: str, schema: bytes) -> Any:
    # Compiled on first use: the import costs 18 ms that `setpoint --help` need not pay.
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(msgspec.json.decode(schema))

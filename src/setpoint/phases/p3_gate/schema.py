"""Is the call well formed? Names, JSON Schema, structure (the first of three gates)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from setpoint.kernel.proposal import Call, Malformed
from setpoint.kernel.ruling import Refusal
from setpoint.phases.p3_gate.tools import Tool


def refuse_malformed(bad: Malformed) -> Refusal:
    """The typed refusal of something that was no call at all."""
    reason = "CUT_OFF" if bad.reason == "cut_off" else "MALFORMED"
    if bad.reason == "too_many_calls":
        return Refusal(bad.ordinal, bad.name, "resource", "TOO_MANY_CALLS", bad.pointer, bad.message)
    return Refusal(bad.ordinal, bad.name, "syntactic", reason, bad.pointer, f"{bad.reason}: {bad.message}")


def check_schema(call: Call, tool: Tool) -> Refusal | None:
    """The first schema violation with its JSON pointer, None when there is none."""
    for error in _validator(tool.name, msgspec.json.encode(tool.spec.schema)).iter_errors(call.arguments):
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


def _escape(step: Any) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=256)
def _validator(name: str, schema: bytes) -> Any:
    # Compiled on first use: the import costs 18 ms that `setpoint --help` need not pay.
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(msgspec.json.decode(schema))

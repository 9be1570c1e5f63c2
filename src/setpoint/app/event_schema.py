"""The published JSON Schema of what is written out: the envelope of every event, and a plan.

Made from the types the runtime itself encodes with, so it cannot fall behind them. Draft 2020-12, as for manifests.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from setpoint.app.planning import Plan
from setpoint.kernel import events
from setpoint.kernel.chain import INT_MAX
from setpoint.kernel.events import SCHEMA_VERSION, Event
from setpoint.kernel.run_events import RUN_EVENT_TYPES
from setpoint.kernel.session_events import SESSION_EVENT_TYPES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REF: Final = "#/$defs/{name}"
_HASH: Final = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}

EVENT_TYPES: Final[dict[str, type[Event]]] = {**events.EVENT_TYPES, **RUN_EVENT_TYPES, **SESSION_EVENT_TYPES}
"""Every event of trajectories, runs and sessions: one envelope, and a name means the same everywhere."""

Schema = dict[str, Any]


def event_schema() -> Schema:
    """One event envelope (docs/reference/events.md); ``data`` by ``type``, one closed alternative for each (R171)."""
    _, components = msgspec.json.schema_components(EVENT_TYPES.values(), ref_template=_REF)
    envelope: Schema = {
        "stream": {"type": "string", "minLength": 1, "description": "The log it lies in."},
        "seq": _position(1) | {"description": "Its position there, from 1, without gaps."},
        "turn": _position(0) | {"description": "The turn it belongs to; 0 before the first."},
        "type": {"enum": list(EVENT_TYPES), "description": "What it states; decides what `data` holds."},
        "v": {"const": SCHEMA_VERSION, "description": "Version of this format."},
        "at": {
            "type": "string",
            "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$",
            "description": "When it was written, RFC 3339 in UTC with milliseconds.",
        },
        "prev": _HASH | {"description": "Hash of the event before it; of zeros before the first."},
        "hash": _HASH | {"description": "SHA-256 of the canonical envelope without this field."},
        "data": {"type": "object", "description": "The fact itself; integers only, no fractions."},
    }
    return {
        "$schema": DIALECT,
        "$id": "https://setpoint.dev/schema/v1/event.json",
        "title": "Event",
        "description": "One fact of a log: the same in the store, on stdout, over SSE and in exports.",
        "type": "object",
        "properties": envelope,
        "required": list(envelope),
        "additionalProperties": False,
        "oneOf": [
            {"properties": {"type": {"const": name}, "data": {"$ref": _REF.format(name=name)}}} for name in EVENT_TYPES
        ],
        "$defs": components,
    }


def plan_schema() -> Schema:
    """A plan file, as `setpoint plan -o` writes it."""
    (found,), components = msgspec.json.schema_components([Plan], ref_template=_REF)
    return {
        "$schema": DIALECT,
        "$id": "https://setpoint.dev/schema/v1/plan.json",
        "title": "Plan",
        **found,
        "$defs": components,
    }


def _position(least: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": INT_MAX}

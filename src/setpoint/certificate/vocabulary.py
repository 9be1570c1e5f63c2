"""The events a verifier reads: their fields, types and defaults; and the names of those it may pass over.

An event of any other name is a failure (an unknown tag is a no). A test holds this equal to the runtime's own union.
"""

from __future__ import annotations

from typing import Any, Final

REQUIRED: Final = object()

_Fields = dict[str, tuple[tuple[type, ...], Any]]

_STR: Final = ((str,), REQUIRED)
_INT: Final = ((int,), REQUIRED)
_TEXT: Final = ((str,), "")
_COUNT: Final = ((int,), 0)
_REF: Final = ((dict, type(None)), None)
_LIST: Final = ((list,), [])
_USAGE: Final = {"input_tokens": _COUNT, "output_tokens": _COUNT, "cached_tokens": _COUNT, "usd_micros": _COUNT}

REPLAYED: Final[dict[str, _Fields]] = {
    "TaskAccepted": {
        "name": _STR,
        "task": ((dict,), REQUIRED),
        "task_digest": _STR,
        "workspace": _STR,
        "base_digest": _STR,
        "exposure": _STR,
        "required_level": _STR,
        "models": ((list,), REQUIRED),
        "tier": _STR,
        "rung": _STR,
        "runtime": _STR,
        "directory": _STR,
        "source": _TEXT,
        "models_directory": _TEXT,
        "parent": _TEXT,
        "fork_turn": _COUNT,
    },
    "TurnStarted": {"elapsed_ms": _INT, "stage": ((str,), "nominal")},
    "ModelReplied": {
        "route": _STR,
        "stop": _STR,
        "reply": _REF,
        "reply_ref": _REF,
        **_USAGE,
        "latency_ms": _COUNT,
        "model": _TEXT,
        "cursor": ((int, type(None)), None),
    },
    "ModelFailed": {
        "route": _STR,
        "kind": _STR,
        "message": _STR,
        **_USAGE,
        "latency_ms": _COUNT,
        "retry_after_ms": _COUNT,
        "cursor": ((int, type(None)), None),
    },
    "Authorized": {
        "ordinal": _INT,
        "tool": _STR,
        "call_digest": _STR,
        "effect": _STR,
        "items": _LIST,
        "path": _TEXT,
        "blast": _TEXT,
    },
    "Refused": {
        "ordinal": _INT,
        "tool": _STR,
        "gate": _STR,
        "reason": _STR,
        "message": _STR,
        "pointer": _TEXT,
        "call_digest": _TEXT,
        "path": _TEXT,
    },
    "ToolIntent": {
        "ordinal": _INT,
        "tool": _STR,
        "call_digest": _STR,
        "key": _STR,
        "effect": _STR,
        "arguments": _REF,
        "arguments_ref": _REF,
        "items": _LIST,
        "attempt": ((int,), 1),
        "rate_calls": _COUNT,
    },
    "ToolResult": {
        "ordinal": _INT,
        "tool": _STR,
        "status": _STR,
        "text": ((str, dict), ""),
        "exit_code": ((int, type(None)), None),
        "reason": _TEXT,
        "duration_ms": _COUNT,
        "output_bytes": _COUNT,
        "output_sha256": _TEXT,
        "attempt": ((int,), 1),
        "diagnostics": _LIST,
    },
    "ChangesObserved": {
        "fingerprint": _STR,
        "changed": _INT,
        "changes": ((list, type(None)), None),
        "changes_ref": _REF,
    },
    "EvidenceRecorded": {
        "check": _STR,
        "level": _STR,
        "verdict": _STR,
        "fingerprint": _STR,
        "check_digest": _STR,
        "distance": _COUNT,
        "reason": _TEXT,
        "collected": ((int, type(None)), None),
        "passed": _COUNT,
        "failed": _COUNT,
        "errors": _COUNT,
        "skipped": _COUNT,
        "failures": _LIST,
        "output_sha256": _TEXT,
        "duration_ms": _COUNT,
        "phase": ((str,), "turn"),
    },
    "DeltaMeasured": {"fingerprint": _STR, "progress": ((list,), REQUIRED), "items": _LIST},
    "SavepointKept": {
        "savepoint": _INT,
        "fingerprint": _STR,
        "changed": _INT,
        "paths": _LIST,
        "proposal": _TEXT,
    },
    "RolledBack": {
        "savepoint": _INT,
        "fingerprint": _STR,
        "reason": _STR,
        "note": _TEXT,
        "blocked": _TEXT,
        "changed": _COUNT,
        "paths": _LIST,
    },
    "TurnEnded": {"outcome": _STR, "elapsed_ms": _COUNT},
    "BudgetRaised": {
        "by": _STR,
        "turns": _COUNT,
        "tokens": _COUNT,
        "usd_micros": _COUNT,
        "wall_ms": _COUNT,
    },
    "ApprovalRequested": {
        "node": _STR,
        "ticket_id": _STR,
        "ticket": ((dict,), REQUIRED),
        "action_digest": _STR,
        "expires_at_ms": _INT,
        "covers": _TEXT,
        "elapsed_ms": _COUNT,
    },
    "ApprovalSigned": {
        "ticket_id": _STR,
        "by": _STR,
        "verdict": _STR,
        "decision": ((dict,), REQUIRED),
        "position": _INT,
        "counts": ((bool,), REQUIRED),
        "why": _TEXT,
    },
    "ApprovalResolved": {"node": _STR, "ticket_id": _STR, "outcome": _STR, "by": _LIST, "reason": _TEXT},
    "ClaimRejected": {"note": _STR, "items": _LIST},
    "CommitPlanned": {"commit_id": _STR, "savepoint": _INT, "fingerprint": _STR},
    "Committed": {"commit_id": _STR, "fingerprint": _STR, "state_digest": _STR, "changed": _INT, "paths": _LIST},
    "DriftFound": {"what": _STR, "expected": _STR, "found": _STR, "decision": _STR},
}

PASSED_OVER: Final = frozenset(
    {
        "ContextBuilt",
        "Routed",
        "Stalled",
        "QuestionAsked",
        "QuestionAnswered",
        "ControlRequested",
        "ControlApplied",
        "LeaseClaimed",
        "RoutesOpened",
        "CallDeclined",
        "CheckpointWritten",
    }
)
"""They change no ruling and no verdict: they are bound by the chain and otherwise not read."""

NEVER_INSIDE: Final = frozenset({"Certified", "Finished", "Undone"})
"""They come after the certificate, or speak against it."""


def fields(event: dict[str, Any]) -> dict[str, Any]:
    """The data of a replayed event with defaults filled in. ValueError when it does not have exactly its fields."""
    known = REPLAYED[event["type"]]
    data = event["data"]
    if unknown := sorted(data.keys() - known.keys()):
        raise ValueError(f"event {event['seq']} ({event['type']}) has unknown fields {unknown}")
    filled: dict[str, Any] = {}
    for name, (types, default) in known.items():
        value = data.get(name, default)
        if value is REQUIRED:
            raise ValueError(f"event {event['seq']} ({event['type']}) lacks {name}")
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"event {event['seq']} ({event['type']}): {name} is {value!r}")
        if isinstance(value, int) and name != "exit_code" and value < 0:
            raise ValueError(f"event {event['seq']} ({event['type']}): {name} is {value}, below zero")
        filled[name] = value
    return filled


def reference(value: Any) -> tuple[str, int] | None:
    """(digest, bytes) of a reference to a payload, None when ``value`` is no reference."""
    match value:
        case {"ref": str(digest), "bytes": int(size)} if len(value) == 2:
            return digest, size
        case _:
            return None

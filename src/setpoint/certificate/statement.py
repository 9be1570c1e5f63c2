"""The signed statements: their exact form, and nothing else.

Two in-toto Statements v1 are signed over the same subjects: the certificate itself, and optionally a Simple
Verification Result (SVR) for consumers that know only the standard predicate.
"""

from __future__ import annotations

from typing import Any, Final

from .canonical import is_digest

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://setpoint.dev/certificate/v1"
SVR_TYPE: Final = "https://in-toto.io/attestation/svr/v0.2"
VERIFIER_ID: Final = "https://setpoint.dev/verifier/v1"
SVR_PROPERTIES: Final = ("SETPOINT_GOAL_MET", "SETPOINT_LOG_COMPLETE", "SETPOINT_VERDICTS_REPLAYED")
COVERS: Final = "States what was checked and at what level; it does not say correct."
LEVELS: Final = ("claim", "static", "visible", "sealed", "proof")


class _Digest:
    """Spec of a ``sha256:<hex>`` string."""


class _Level:
    """Spec of the name of an evidence level."""


DIGEST, LEVEL = _Digest(), _Level()

_CHECKED: Final = {
    "id": str,
    "level_required": LEVEL,
    "level_reached": LEVEL,
    "verdict": str,
    "check_digest": str,
    "evidence_digest": DIGEST,
    "seq": int,
}
_AMOUNTS: Final = {"turns": int, "tokens": int, "usd_micros": int, "wall_ms": int}
PREDICATE: Final[dict[str, Any]] = {
    "runtime": {"name": str, "version": str},
    "trajectory": str,
    "task": {"name": str, "digest": DIGEST},
    "policy_digest": DIGEST,
    "base_digest": DIGEST,
    "state_digest": DIGEST,
    "fingerprint": str,
    "exposure": str,
    # required and reached: the strongest that at least one criterion must, and does, have; weakest: that all have
    "level": {"required": LEVEL, "reached": LEVEL, "weakest": LEVEL},
    "criteria": [_CHECKED],
    "invariants": [{**_CHECKED, "severity": str}],
    "savepoints": [{"savepoint": int, "fingerprint": str, "seq": int}],
    "log": {"algorithm": str, "size": int, "root": DIGEST, "first": DIGEST, "last": DIGEST},
    "counts": {"permits": int, "refusals": int, "rollbacks": int, "claims_rejected": int},
    "budget": {"limit": _AMOUNTS, "used": _AMOUNTS},
    "isolation": {"tier": str, "rung": str},
    "started_at": str,
    "ended_at": str,
    "keyid": DIGEST,
    "covers": str,
}
_SUBJECT: Final = [{"name": str, "digest": {"sha256": str}}]
STATEMENT: Final[dict[str, Any]] = {
    "_type": str,
    "subject": _SUBJECT,
    "predicateType": str,
    "predicate": PREDICATE,
}
SVR: Final[dict[str, Any]] = {
    "_type": str,
    "subject": _SUBJECT,
    "predicateType": str,
    "predicate": {
        "verifier": {"id": str},
        "timeCreated": str,
        "policies": [{"name": str, "digest": {"sha256": str}}],
        "properties": [str],
    },
}


def misfit(value: Any, spec: Any, where: str) -> str | None:
    """The first place where ``value`` does not have exactly the form ``spec``, None when it has.

    A dict spec demands exactly its keys; a list spec holds the form of every item.
    """
    match spec:
        case dict():
            if not isinstance(value, dict):
                return f"{where} is not an object"
            if value.keys() != spec.keys():
                unknown, absent = sorted(value.keys() - spec.keys()), sorted(spec.keys() - value.keys())
                return f"{where} has unknown fields {unknown} and lacks {absent}"
            return _first(misfit(value[key], spec[key], f"{where}.{key}") for key in spec)
        case [item]:
            if not isinstance(value, list):
                return f"{where} is not a list"
            return _first(misfit(each, item, f"{where}[{index}]") for index, each in enumerate(value))
        case _Digest():
            return None if is_digest(value) else f"{where} is not sha256:<64 hex>"
        case _Level():
            return None if value in LEVELS else f"{where} is not an evidence level"
        case type():
            fits = isinstance(value, spec) and not (spec is int and (isinstance(value, bool) or value < 0))
            return None if fits else f"{where} is not a {spec.__name__}"
        case _:
            raise AssertionError(f"{spec!r} is not a form")


def _first(found: Any) -> str | None:
    return next((each for each in found if each is not None), None)


def subjects(predicate: dict[str, Any]) -> list[dict[str, Any]]:
    """What the statements are about: the final state, under the task's name, and the task itself."""
    task = predicate["task"]
    return [
        {"name": task["name"], "digest": {"sha256": bare(predicate["state_digest"])}},
        {"name": f"task:{task['name']}", "digest": {"sha256": bare(task["digest"])}},
    ]


def statement(predicate: dict[str, Any]) -> dict[str, Any]:
    """The in-toto Statement of a certificate."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects(predicate),
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def svr(predicate: dict[str, Any]) -> dict[str, Any]:
    """The Simple Verification Result of the same facts, for generic consumers."""
    policies = [
        {"name": "task", "digest": {"sha256": bare(predicate["task"]["digest"])}},
        {"name": "policy", "digest": {"sha256": bare(predicate["policy_digest"])}},
    ]
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects(predicate),
        "predicateType": SVR_TYPE,
        "predicate": {
            "verifier": {"id": VERIFIER_ID},
            "timeCreated": predicate["ended_at"],
            "policies": policies,
            "properties": [*SVR_PROPERTIES, f"SETPOINT_LEVEL_{predicate['level']['reached'].upper()}"],
        },
    }


def bare(digest: str) -> str:
    """The hex digits of ``sha256:<hex>``, as in-toto digest sets want them."""
    return digest.partition(":")[2]

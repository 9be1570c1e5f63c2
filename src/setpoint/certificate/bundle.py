"""The certificate file: one canonical JSON document and a newline.

It carries everything a verifier needs but two things, which must come by another way: the public key that is trusted,
and (when the verifier has its own opinion) the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from . import dsse, log
from .canonical import canonical, digest_bytes, from_base64, is_digest, parse, to_base64
from .report import Invalid
from .statement import PREDICATE_TYPE, STATEMENT, STATEMENT_TYPE, SVR, SVR_TYPE, misfit, statement, svr

API_VERSION: Final = "setpoint.dev/v1"
KIND: Final = "Certificate"
BUNDLE_BYTES_MAX: Final = 1 << 30
"""About 400,000 turns at 2.5 KB a turn; a larger file is refused before it is read into objects."""

_FIELDS: Final = frozenset({"apiVersion", "kind", "envelope", "svr", "task", "events", "payloads"})
_OPTIONAL: Final = frozenset({"svr", "payloads"})


@dataclass(frozen=True, slots=True)
class Bundle:
    """A file whose form was checked. Nothing in it is believed yet."""

    envelope: dsse.Sealed
    statement: dict[str, Any]
    svr_envelope: dsse.Sealed | None
    svr_statement: dict[str, Any] | None
    task: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    payloads: Mapping[str, bytes]

    @property
    def predicate(self) -> dict[str, Any]:
        return self.statement["predicate"]


def seal(
    predicate: dict[str, Any],
    key: Ed25519PrivateKey,
    task: dict[str, Any],
    events: Sequence[dict[str, Any]],
    payloads: Iterable[bytes] = (),
    *,
    with_svr: bool = True,
) -> bytes:
    """The bytes of a certificate file. The same inputs give the same bytes.

    ``predicate`` comes from ``setpoint.phases.p6_verdict.certificate``; ``events`` are the full envelopes it was built
    from. Nothing is checked here: what is sealed is what ``verify`` will judge.
    """
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "envelope": dsse.sign(canonical(statement(predicate)), key),
        "task": task,
        "events": list(events),
    }
    if with_svr:
        document["svr"] = dsse.sign(canonical(svr(predicate)), key)
    if kept := {digest_bytes(data): to_base64(data) for data in payloads}:
        document["payloads"] = kept
    return canonical(document) + b"\n"


def read(data: bytes) -> Bundle:
    """Take a certificate file apart. Invalid("structure", ...) for anything but the one exact form."""
    if len(data) > BUNDLE_BYTES_MAX:
        raise Invalid("structure", f"the file has {len(data)} bytes, more than {BUNDLE_BYTES_MAX}")
    if not data.endswith(b"\n"):
        raise Invalid("structure", "the file does not end with a newline: it was cut or changed")
    try:
        document = parse(data[:-1])
    except ValueError as error:
        raise Invalid("structure", str(error)) from error
    if not isinstance(document, dict) or document.keys() | _OPTIONAL != _FIELDS:
        raise Invalid("structure", f"a certificate has exactly the fields {sorted(_FIELDS)}")
    if document["apiVersion"] != API_VERSION or document["kind"] != KIND:
        raise Invalid("structure", f"this is {document['apiVersion']!r} {document['kind']!r}, not {API_VERSION} {KIND}")
    if not isinstance(document["task"], dict) or not isinstance(document["events"], list):
        raise Invalid("structure", "task is not an object or events is not a list")
    if problem := next(filter(None, map(log.misshapen, document["events"])), None):
        raise Invalid("structure", problem)
    envelope, certified = _opened(document["envelope"], STATEMENT, PREDICATE_TYPE)
    svr_envelope, result = _opened(document["svr"], SVR, SVR_TYPE) if "svr" in document else (None, None)
    return Bundle(
        envelope,
        certified,
        svr_envelope,
        result,
        document["task"],
        tuple(document["events"]),
        _payloads(document.get("payloads")),
    )


def _opened(envelope: Any, form: dict[str, Any], predicate_type: str) -> tuple[dsse.Sealed, dict[str, Any]]:
    try:
        sealed = dsse.opened(envelope)
        value = parse(sealed.payload)
    except ValueError as error:
        raise Invalid("structure", str(error)) from error
    if problem := misfit(value, form, "statement"):
        raise Invalid("structure", problem)
    if value["_type"] != STATEMENT_TYPE or value["predicateType"] != predicate_type:
        raise Invalid("structure", f"the statement is a {value['predicateType']!r}, not a {predicate_type}")
    return sealed, value


def _payloads(found: Any) -> dict[str, bytes]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not found:
        raise Invalid("structure", "payloads is not an object, or is empty")
    payloads: dict[str, bytes] = {}
    for name, text in found.items():
        if not is_digest(name) or not isinstance(text, str):
            raise Invalid("structure", f"payload {name!r} is not a digest with base64 text")
        try:
            payloads[name] = from_base64(text)
        except ValueError as error:
            raise Invalid("structure", f"payload {name}: {error}") from error
        if digest_bytes(payloads[name]) != name:
            raise Invalid("structure", f"payload {name} holds other bytes than its name says")
    return payloads

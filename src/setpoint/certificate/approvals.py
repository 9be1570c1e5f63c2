"""Approvals in a log: the ticket of each held call, who said what about it, and whether the call was made by it, once.

A ticket and a decision are canonical JSON; a decision names its ticket by digest. Signatures are checked twice: always
against the key the decision carries (so it was not changed), and against the people a caller trusts, when they are
given (so it was said by them).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .canonical import canonical, from_base64, parse

NAMESPACE: Final = "setpoint-approval"
PLAIN, HARDWARE = "ssh-ed25519", "sk-ssh-ed25519@openssh.com"

_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\n"
_MAGIC: Final = b"SSHSIG"
_TOUCHED: Final = 1

TICKET_FIELDS: Final = frozenset(
    {"v", "ticket_id", "stream", "name", "node", "capability", "effect", "target", "authority", "arguments", "preview"}
    | {"preconditions", "base_digest", "definition_digest", "policy_digest", "requester", "by", "quorum", "each_role"}
    | {"requested_at_ms", "expires_at_ms", "budget", "nonce"}
)
DECISION_FIELDS: Final = frozenset({"type", "v", "ticket_id", "ticket_digest", "verdict", "by", "at_ms", "reason"})
SIGNED_FIELDS: Final = frozenset({"decision", "scheme", "key", "signature"})


@dataclass(frozen=True, slots=True)
class Approver:
    """Somebody a caller trusts to approve: ``key`` is the line of a .pub file."""

    name: str
    roles: tuple[str, ...]
    key: str

    @property
    def spelled(self) -> str:
        """The key without its comment, as a decision carries it."""
        return " ".join(self.key.split()[:2])


@dataclass(slots=True)
class Held:
    """One held call: its ticket, what was said about it, and what became of it."""

    ordinal: int
    ticket: dict[str, Any]
    digest: str
    said: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])  # signed decisions, by name
    outcome: str = ""
    by: tuple[str, ...] = ()
    used: bool = False

    @property
    def seats(self) -> int:
        """How many different people must say yes."""
        roles = len(self.ticket["by"]) if self.ticket["each_role"] else 1
        return max(roles, self.ticket["quorum"])


def read_approvers(data: bytes) -> tuple[Approver, ...]:
    """The people of a roster in JSON: ``{"approvers": [{"name": ..., "roles": [...], "key": ...}]}``. ValueError."""
    import json

    try:
        entries = json.loads(data)["approvers"]
        found = tuple(Approver(entry["name"], tuple(entry["roles"]), entry["key"]) for entry in entries)
        for approver in found:
            _key(approver.spelled)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no roster in JSON: {type(error).__name__} {error}") from error
    return found


def read_ticket(data: bytes) -> dict[str, Any]:
    """A ticket from its canonical bytes. ValueError for anything else."""
    ticket = parse(data)
    if not isinstance(ticket, dict) or ticket.keys() != TICKET_FIELDS:
        raise ValueError("it does not have exactly the fields of a ticket")
    texts = TICKET_FIELDS - {"v", "arguments", "preconditions", "by", "quorum", "each_role"}
    texts -= {"requested_at_ms", "expires_at_ms"}
    if not all(isinstance(ticket[name], str) for name in texts) or not isinstance(ticket["arguments"], dict):
        raise ValueError("a field of the ticket has the wrong type")
    if not _is_count(ticket["quorum"]) or not all(map(_is_count, (ticket["requested_at_ms"], ticket["expires_at_ms"]))):
        raise ValueError("a number of the ticket is none")
    if not isinstance(ticket["by"], list) or not ticket["by"]:
        raise ValueError("the ticket names nobody who may decide")
    return ticket


def read_signed(data: bytes) -> dict[str, Any]:
    """A signed decision whose signature holds under the key it carries. ValueError for anything else."""
    signed = parse(data)
    if not isinstance(signed, dict) or signed.keys() != SIGNED_FIELDS:
        raise ValueError("it does not have exactly the fields of a signed decision")
    decision = signed["decision"]
    if not isinstance(decision, dict) or decision.keys() != DECISION_FIELDS or decision["type"] != NAMESPACE:
        raise ValueError("it does not have exactly the fields of a decision")
    if decision["verdict"] not in ("approve", "deny") or not _is_count(decision["at_ms"]):
        raise ValueError("the decision is neither a yes nor a no, or was made at no time")
    if not isinstance(signed["key"], str) or not isinstance(signed["signature"], str):
        raise ValueError("its key or its signature is no text")
    if not is_signed(signed):
        raise ValueError("its signature does not hold: the decision was changed, or another key made it")
    return signed


def milliseconds(at: str) -> int:
    """An envelope's time in milliseconds since 1970; one that is no time is later than everything."""
    try:
        moment = datetime.strptime(at, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return 1 << 62
    return round(moment.timestamp() * 1000)


def untrusted(held: Sequence[Held], approvers: Sequence[Approver]) -> Iterator[str]:
    """Everything granted that the given people did not grant: another key, another name, a missing role."""
    by_key: Mapping[str, Approver] = {approver.spelled: approver for approver in approvers}
    for one in held:
        if one.outcome != "granted":
            continue
        roles: list[set[str]] = []
        for name in one.by:
            person = by_key.get(one.said[name]["key"]) if name in one.said else None
            if person is None or person.name != name:
                yield f"{one.ticket['ticket_id']} was granted by {name!r} with a key that is none of theirs here"
            elif not set(person.roles) & set(one.ticket["by"]):
                yield f"{one.ticket['ticket_id']} was granted by {name!r}, who has none of the roles it asks for"
            else:
                roles.append(set(person.roles))
        if one.ticket["each_role"] and any(all(role not in had for had in roles) for role in one.ticket["by"]):
            yield f"{one.ticket['ticket_id']} needs every role of {one.ticket['by']}, and one is missing"


# Signatures


def is_signed(signed: dict[str, Any]) -> bool:
    """Whether the signature is that of the carried key over exactly the carried decision."""
    try:
        message = canonical(signed["decision"])
        kind, raw, blob, application = _key(signed["key"])
        if signed["scheme"] == "ed25519":
            return kind == PLAIN and _holds(raw, from_base64(signed["signature"]), message)
        return signed["scheme"] == "sshsig" and _is_sshsig(signed["signature"], message, kind, raw, blob, application)
    except (ValueError, TypeError):
        return False


def _is_sshsig(text: str, message: bytes, kind: str, raw: bytes, blob: bytes, application: bytes) -> bool:
    """OpenSSH's PROTOCOL.sshsig, for the two kinds of Ed25519 keys."""
    if not text.startswith(_BEGIN) or not text.endswith(_END):
        return False
    wire = _Wire(base64.b64decode(text[len(_BEGIN) : -len(_END)].replace("\n", ""), validate=True))
    if wire.take(len(_MAGIC)) != _MAGIC or wire.take(4) != b"\0\0\0\1":
        return False
    by, namespace, reserved, name, signature = (wire.string() for _ in range(5))
    wire.end()
    if by != blob or namespace != NAMESPACE.encode() or reserved or name not in (b"sha256", b"sha512"):
        return False
    hashed = hashlib.new(name.decode(), message).digest()
    covered = _MAGIC + b"".join(len(part).to_bytes(4, "big") + part for part in (namespace, reserved, name, hashed))
    inner = _Wire(signature)
    if inner.string() != kind.encode():
        return False
    made = inner.string()
    if kind == HARDWARE:
        flags, counter = inner.take(1), inner.take(4)
        if not flags[0] & _TOUCHED:
            return False
        covered = hashlib.sha256(application).digest() + flags + counter + hashlib.sha256(covered).digest()
    inner.end()
    return _holds(raw, made, covered)


def _key(text: str) -> tuple[str, bytes, bytes, bytes]:
    """(type, 32 raw bytes, blob, application) of ``type base64``. ValueError for a key that cannot approve."""
    kind, _, encoded = text.partition(" ")
    blob = from_base64(encoded)
    wire = _Wire(blob)
    if kind not in (PLAIN, HARDWARE) or wire.string() != kind.encode():
        raise ValueError(f"{kind!r} is no type of key that approves")
    raw = wire.string()
    application = wire.string() if kind == HARDWARE else b""
    wire.end()
    return kind, raw, blob, application


def _holds(raw: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except InvalidSignature:
        return False
    return True


class _Wire:
    """Reads SSH's wire form from the front. ValueError where bytes are missing or left over."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, count: int) -> bytes:
        taken, self._data = self._data[:count], self._data[count:]
        if len(taken) != count:
            raise ValueError("it ends too early")
        return taken

    def string(self) -> bytes:
        return self.take(int.from_bytes(self.take(4), "big"))

    def end(self) -> None:
        if self._data:
            raise ValueError(f"{len(self._data)} bytes too many")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

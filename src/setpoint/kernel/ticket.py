"""What a person is asked, what they answer, and the exact bytes that are signed.

A ticket names one action in one state: which capability, with which arguments, on which base, under which policy. A
decision names a ticket by its digest, so whatever changes in the ticket voids the decision. Canonical bytes (see
``kernel.keys``) are both wire form and what is hashed or signed: ``sha256sum`` of a ticket's file is its digest, and
``ssh-keygen -Y verify`` checks a signature over a decision's file.

An approval is good for one use: a ticket belongs to one node of one run, and its nonce is never used again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeVar, cast, get_args

import msgspec

from setpoint.kernel.errors import UsageFault
from setpoint.kernel.keys import canonical, digest_bytes
from setpoint.kernel.limits import (
    APPROVAL_REASON_CHARS_MAX,
    APPROVAL_SEATS_MAX,
    APPROVAL_TICKET_BYTES_MAX,
    SIGNED_DECISION_BYTES_MAX,
)
from setpoint.kernel.ruling import Effect

NAMESPACE: Final = "setpoint-approval"
"""The SSHSIG namespace: a signature a key made for another purpose never counts as an approval, nor this one there."""

Verdict = Literal["approve", "deny"]
Scheme = Literal["ed25519", "sshsig"]

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**64 - 1
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; later times cannot be shown."""
_NONCE_CHARS_MIN: Final = 16
_TICKET_TEXTS: Final = (
    *("ticket_id", "stream", "name", "node", "capability", "effect", "target", "authority", "preview"),
    *("base_digest", "definition_digest", "policy_digest", "requester", "budget", "nonce"),
)


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action that waits for people. Every field but ``v`` has to be said, so that none is forgotten.

    Raises ValueError or TypeError for a value that could not be written down exactly, or that makes no sense.
    """

    v: Literal[1] = 1
    ticket_id: str
    stream: str  # the run or trajectory that waits
    name: str  # its workflow or task
    node: str  # path of the node, or "turn.ordinal" of the call
    capability: str
    effect: Effect  # from the capability's author, never from the model (R128)
    target: str  # what is acted upon, in words
    authority: str  # with whose rights: the grant, credential or scope
    arguments: dict[str, Any]  # complete, as they will be sent: plain JSON without fractions
    preview: str  # exactly what the person is shown of the outcome
    preconditions: tuple[str, ...]
    base_digest: str  # of the state the action was decided on
    definition_digest: str  # of the workflow or task the run is pinned to
    policy_digest: str  # of the rules that asked for the approval
    requester: str  # the principal on whose behalf the run acts; never an approver of it
    by: tuple[str, ...]  # roles that may decide
    quorum: int  # how many different people must say yes
    each_role: bool  # every role of ``by`` must be among them, each by another person
    requested_at_ms: int
    expires_at_ms: int  # from here on silence has become a no
    budget: str  # spent and left, in words
    nonce: str

    def __post_init__(self) -> None:
        _refuse_untyped(self, texts=_TICKET_TEXTS)
        for field in ("by", "preconditions"):
            if not isinstance(getattr(self, field), tuple) or not all(isinstance(x, str) for x in getattr(self, field)):
                raise TypeError(f"{field} is {getattr(self, field)!r}, not a tuple of texts")
        if not isinstance(self.arguments, dict) or type(self.each_role) is not bool:  # type: ignore[reportUnnecessaryIsInstance]
            raise TypeError("arguments are an object, each_role is true or false")
        for field in ("ticket_id", "stream", "name", "node", "capability", "requester"):
            if not getattr(self, field):
                raise ValueError(f"a ticket needs its {field}")
        for field in ("base_digest", "definition_digest", "policy_digest"):
            _refuse_no_digest(getattr(self, field), field)
        if self.v != 1 or self.effect not in get_args(Effect):
            raise ValueError(f"version {self.v!r} or effect class {self.effect!r} is unknown")
        _refuse_odd_roles(self.by, self.quorum)
        _refuse_no_time(self.requested_at_ms)
        _refuse_no_time(self.expires_at_ms)
        if self.requested_at_ms >= self.expires_at_ms:
            raise ValueError(f"the ticket expires ({self.expires_at_ms}) before it is asked ({self.requested_at_ms})")
        if len(self.nonce) < _NONCE_CHARS_MIN:
            raise ValueError(f"a nonce has at least {_NONCE_CHARS_MIN} characters")


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=NAMESPACE):
    """One person's yes or no to one ticket. Its canonical bytes are what is signed. Raises as ``Ticket`` does."""

    ticket_id: str
    ticket_digest: str
    verdict: Verdict
    by: str  # the approver's name in the roster
    at_ms: int
    reason: str = ""
    v: Literal[1] = 1

    def __post_init__(self) -> None:
        _refuse_untyped(self, texts=("ticket_id", "ticket_digest", "verdict", "by", "reason"))
        if not self.ticket_id or not self.by or self.v != 1 or self.verdict not in get_args(Verdict):
            raise ValueError("a decision names its ticket, its author, and approve or deny")
        _refuse_no_digest(self.ticket_digest, "ticket_digest")
        _refuse_no_time(self.at_ms)
        if len(self.reason) > APPROVAL_REASON_CHARS_MAX:
            raise ValueError(f"the reason has {len(self.reason)} characters, above {APPROVAL_REASON_CHARS_MAX}")


class SignedDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision and a signature that nobody has checked yet: ``ports.approver`` does."""

    decision: Decision
    scheme: Scheme
    key: str  # the public key as OpenSSH writes it, without comment: "ssh-ed25519 AAAA..."
    signature: str  # ed25519: base64 of its 64 bytes; sshsig: the armoured text that ssh-keygen -Y sign writes


def ticket_bytes(ticket: Ticket) -> bytes:
    """The canonical bytes: what ``ticket_digest`` hashes and ``read_ticket`` reads."""
    return canonical(msgspec.to_builtins(ticket))


def ticket_digest(ticket: Ticket) -> str:
    """What a decision binds to. Any change of any field gives another digest."""
    return digest_bytes(ticket_bytes(ticket))


def action_digest(capability: str, arguments: Any, base_digest: str, policy_digest: str) -> str:
    """``sha256:`` of exactly what an approval allows (D3). The definition is not part: a deploy voids no approval."""
    return digest_bytes(canonical([capability, arguments, base_digest, policy_digest]))


def changed_since(
    ticket: Ticket, capability: str, arguments: Any, base_digest: str, policy_digest: str
) -> tuple[str, ...]:
    """What differs between the ticket and the action about to run; anything at all voids the approval (R126)."""
    now = {"capability": capability, "arguments": arguments, "base": base_digest, "policy": policy_digest}
    then = (ticket.capability, ticket.arguments, ticket.base_digest, ticket.policy_digest)
    # Canonical bytes, since Python holds True for equal to 1.
    return tuple(
        what for (what, value), was in zip(now.items(), then, strict=True) if canonical(value) != canonical(was)
    )


def decision_bytes(decision: Decision) -> bytes:
    """The canonical bytes that are signed."""
    return canonical(msgspec.to_builtins(decision))


def decide(ticket: Ticket, verdict: Verdict, by: str, at_ms: int, reason: str = "") -> Decision:
    """The decision about exactly this ticket, to be signed."""
    return Decision(
        ticket_id=ticket.ticket_id,
        ticket_digest=ticket_digest(ticket),
        verdict=verdict,
        by=by,
        at_ms=at_ms,
        reason=reason,
    )


def read_ticket(data: bytes) -> Ticket:
    """A ticket from its canonical bytes. UsageFault for anything else."""
    return _read(data, Ticket, "ticket", APPROVAL_TICKET_BYTES_MAX)


def signed_bytes(signed: SignedDecision) -> bytes:
    """The wire form of a signed decision."""
    return canonical(msgspec.to_builtins(signed))


def read_signed(data: bytes) -> SignedDecision:
    """A signed decision from its wire form, well formed and nothing more. UsageFault for anything else."""
    return _read(data, SignedDecision, "signed decision", SIGNED_DECISION_BYTES_MAX)


_T = TypeVar("_T", Ticket, SignedDecision)


def _read(data: bytes, kind: type[_T], what: str, bytes_max: int) -> _T:
    if len(data) > bytes_max:
        raise UsageFault(f"this {what} has {len(data)} bytes, above the bound of {bytes_max}; nothing was decided")
    data = data.removesuffix(b"\n")  # editors and shells add one
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise UsageFault(f"this is no {what}: {fault}; nothing was decided") from fault
    # One value, one spelling: no duplicate keys, no second reading of the same bytes.
    if canonical(msgspec.to_builtins(value)) != data:
        raise UsageFault(
            f"this {what} is not in canonical form; nothing was decided",
            hint="Pass it on exactly as it was written: sorted keys, no white space between them.",
        )
    return value


def describe(ticket: Ticket) -> list[tuple[str, str]]:
    """Everything a person must see before they decide, as (label, text) in the order to show it (R125).

    Texts may hold line breaks; every character that does not show itself is spelled out, so that what is read is what
    is signed.
    """
    shown = [
        ("Action", f"{ticket.capability} ({ticket.effect})"),
        ("Arguments", _pretty(ticket.arguments)),
        ("Target", ticket.target),
        ("Authority", ticket.authority),
        ("Preview", ticket.preview),
        ("Preconditions", "\n".join(ticket.preconditions)),
        ("Requested by", ticket.requester),
        ("For", f"{ticket.name}, node {ticket.node}, in {ticket.stream}"),
        ("Budget", ticket.budget),
        ("Needs", needs(ticket)),
        ("Requested at", format_time(ticket.requested_at_ms)),
        ("Expires", f"{format_time(ticket.expires_at_ms)}; without an answer until then it is a no"),
        ("Decided on", f"state {ticket.base_digest}"),
        ("Rules", f"policy {ticket.policy_digest}, definition {ticket.definition_digest}"),
        ("Ticket", f"{ticket.ticket_id}, nonce {ticket.nonce}"),
        ("Digest", ticket_digest(ticket)),
    ]
    return [(label, _visible(text) or "(none)") for label, text in shown]


def needs(ticket: Ticket) -> str:
    """Who has to say yes, in words."""
    missing = seats(ticket)
    return "; ".join(f"{missing.count(roles)} of {' or '.join(roles)}" for roles in dict.fromkeys(missing))


def seats(ticket: Ticket) -> list[tuple[str, ...]]:
    """One entry for each yes that is needed: the roles that may give it. Different people, different keys."""
    apart = [(role,) for role in ticket.by] if ticket.each_role else []
    return apart + [ticket.by] * (ticket.quorum - len(apart))


def format_time(at_ms: int) -> str:
    """``2026-01-01T00:00:00Z``, with milliseconds only where there are any."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds").replace("+00:00", "Z")


def _pretty(value: Any) -> str:
    return msgspec.json.format(canonical(value), indent=2).decode()


def _visible(text: str) -> str:
    return "".join(char if char == "\n" or char.isprintable() else _spelled(ord(char)) for char in text)


def _spelled(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _refuse_untyped(value: msgspec.Struct, texts: Sequence[str]) -> None:
    """What msgspec checks when it reads, for a value made in Python."""
    for field in value.__struct_fields__:
        _refuse_unplain(getattr(value, field), field)
    for field in texts:
        if not isinstance(getattr(value, field), str):
            raise TypeError(f"{field} is {getattr(value, field)!r}, not a text")


def _refuse_odd_roles(by: tuple[str, ...], quorum: int) -> None:
    if not by or not all(by) or len(set(by)) != len(by):
        raise ValueError(f"the roles {list(by)} that may decide are empty or repeat one")
    if type(quorum) is not int or not 1 <= quorum <= APPROVAL_SEATS_MAX or len(by) > APPROVAL_SEATS_MAX:
        raise ValueError(f"quorum {quorum!r} or the number of roles is outside 1..{APPROVAL_SEATS_MAX}")


def _refuse_no_digest(text: str, field: str) -> None:
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"{field} is {text!r}, not sha256: and 64 lower-case hex digits")


def _refuse_no_time(value: Any) -> None:
    if type(value) is not int or not 0 <= value <= _TIME_MS_MAX:
        raise ValueError(f"the time {value!r} is not milliseconds since 1970, at most to the year 9999")


def _refuse_unplain(value: Any, where: str) -> None:
    """ValueError or TypeError for what has no single JSON spelling, or another one after it was read back."""
    match value:
        case bool() | None:
            pass
        case str():
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise ValueError(f"{where} holds half a surrogate pair, which no UTF-8 can")
        case int():
            if not _INTEGER_MIN <= value <= _INTEGER_MAX:
                raise ValueError(f"{where} is {value}, beyond 64 bits")
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str):
                    raise TypeError(f"{where} has the key {key!r}, which is not a text")
                _refuse_unplain(key, f"a key of {where}")
                _refuse_unplain(item, f"{where}.{key}")
        case list() | tuple():
            for index, item in enumerate(cast("Sequence[Any]", value)):
                _refuse_unplain(item, f"{where}[{index}]")
        case _:
            raise TypeError(
                f"{where} is {value!r}; a ticket holds text, whole numbers, true, false, null, lists, objects"
            )

"""Reply -> Proposal: each call becomes a typed ``Call`` or a typed ``Malformed`` complaint.

Invariants:

- Total: ``parse_reply`` returns for every ``Reply``; it never raises and never repairs. What is not exactly a call is
  a complaint that names its place by a JSON pointer and keeps the original error.
- A reply that was cut by length holds no call, however complete its calls look (R087).
- Only calls are read. Thought, text and anything a model says about usage have no effect (R108, R114, R233).
- What is accepted is plain JSON with string keys, no lone surrogates, numbers that are finite and integers that fit
  64 bits, at most ``ARGUMENT_DEPTH_MAX`` levels deep, in a reply of at most ``PROPOSAL_BYTES_MAX`` bytes.

Pointers lead into the reply's document (``Reply.document``), where ``raw`` and textual arguments are read as JSON:
``/calls/0/arguments/path``, ``/raw/calls/1/name``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from setpoint.kernel import limits
from setpoint.kernel.keys import digest, digest_bytes, digest_exact
from setpoint.kernel.proposal import Call, Malformed, Proposal, Reply
from setpoint.phases.p2_proposal.strict_json import Flaw, Walk, clip, decode, exact_pointer, join, kind_of, quote, twice

NAME_CHARS_MAX: Final = 128
"""Longest tool name: twice what the providers' wire formats allow (64)."""

_CALL_FIELDS: Final = frozenset({"name", "arguments"})
_REPLY_FIELDS: Final = frozenset({"thought", "text", "calls", "usage"})  # usage is accepted and ignored (R233)


def parse_reply(reply: Reply) -> Proposal:
    """What the runtime makes of a reply. Pure and total."""
    size = _size(reply)
    if size > limits.PROPOSAL_BYTES_MAX:
        message = (
            f"The reply has {size} bytes; one reply may have {limits.PROPOSAL_BYTES_MAX}. Nothing of it was read. "
            "Propose a smaller change."
        )
        return _proposal([_Read(Malformed(0, "", "too_large", "", message), f"bytes:{size}")], "")
    thought = reply.text
    entries = [_Entry(call.name, call.arguments, f"/calls/{n}", textual=True) for n, call in enumerate(reply.calls)]
    if reply.raw is not None:
        raw = _read_raw(reply.raw)
        if isinstance(raw, Flaw):
            entries.append(_Entry("", reply.raw, "/raw", textual=False, flaw=raw))
        else:
            thought = thought or raw.thought
            entries += raw.entries
    unread = _not_for_dispatch(reply)
    if unread is not None:
        reads = _refuse_all(entries, unread, reply)
    else:
        reads = [_read_call(n, entry) for n, entry in enumerate(entries[: limits.CALLS_PER_PROPOSAL_MAX])]
        if len(entries) > limits.CALLS_PER_PROPOSAL_MAX:
            reads.append(_surplus(len(reads), entries))
    return _proposal(reads, _visible(thought))


def exact(arguments: dict[str, Any]) -> Any:
    """``arguments`` in a form that ``keys.canonical`` accepts, equal for equal arguments only.

    Arguments without fractions are their own form. Fractions become their shortest decimal text, and the list of
    their pointers is put beside them, so that ``1.5`` and ``"1.5"`` stay different.
    """
    pointers: list[str] = []
    form = _without_fractions(arguments, "", pointers)
    return [form, pointers] if pointers else form


# What a reply holds


@dataclass(frozen=True, slots=True)
class _Entry:
    """One thing that should be a call. ``textual``: a string in ``arguments`` is JSON text, not a value."""

    name: Any
    arguments: Any
    pointer: str
    textual: bool
    flaw: Flaw | None = None


@dataclass(frozen=True, slots=True)
class _RawReply:
    thought: str
    entries: list[_Entry]


@dataclass(frozen=True, slots=True)
class _Read:
    """A parsed call with what its part of the proposal digest rests on."""

    call: Call | Malformed
    fingerprint: str


def _texts(reply: Reply) -> list[str]:
    """Every text in a reply. Decoded arguments are not among them; they are bounded while they are walked."""
    texts = [reply.text, reply.raw or ""]
    for call in reply.calls:
        texts += [value for value in (call.name, call.arguments) if isinstance(value, str)]
    return texts


def _size(reply: Reply) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(reply))


def _read_raw(raw: str) -> _RawReply | Flaw:
    """The calls in one text that should be JSON: a call, a list of calls, or ``{"thought": ..., "calls": [...]}``."""
    decoded = decode(raw, "/raw", "The reply")
    if isinstance(decoded, Flaw):
        return decoded
    value = decoded.value
    if isinstance(value, list):
        return _RawReply("", [_raw_entry(v, f"/raw/{n}") for n, v in enumerate(cast("list[Any]", value))])
    if not isinstance(value, dict):
        return Flaw(
            "not_object",
            "/raw",
            f"The reply is {kind_of(value)}. A reply is a call, a list of calls, or an object with 'calls'.",
        )
    fields = cast("dict[str, Any]", value)
    if "calls" not in fields:
        said = fields.pop("thought", "")  # a single call may carry its thought beside it
        return _RawReply(said if isinstance(said, str) else "", [_raw_entry(fields, "/raw")])
    flaw = twice(fields, "/raw") or _unknown_field(fields, _REPLY_FIELDS, "/raw", "A reply")
    if flaw is not None:
        return flaw
    calls = fields["calls"]
    if not isinstance(calls, list):
        return Flaw("not_list", "/raw/calls", f"'calls' is {kind_of(calls)}; it must be a list of calls.")
    said = fields.get("thought", fields.get("text", ""))
    entries = [_raw_entry(v, f"/raw/calls/{n}") for n, v in enumerate(cast("list[Any]", calls))]
    return _RawReply(said if isinstance(said, str) else "", entries)


def _raw_entry(value: Any, pointer: str) -> _Entry:
    if not isinstance(value, dict):
        message = f"A call is an object with 'name' and 'arguments'; this is {kind_of(value)}."
        flaw = Flaw("not_object", pointer, message)
        return _Entry("", {}, pointer, textual=False, flaw=flaw)
    fields = cast("dict[str, Any]", value)
    flaw = twice(fields, pointer) or _unknown_field(fields, _CALL_FIELDS, pointer, "A call")
    return _Entry(fields.get("name"), fields.get("arguments", {}), pointer, textual=False, flaw=flaw)


def _unknown_field(fields: dict[str, Any], known: frozenset[str], pointer: str, what: str) -> Flaw | None:
    for key in fields:
        if key not in known:
            allowed = ", ".join(sorted(known - {"usage"}))
            message = f"{what} has no field {quote(key)}; it has {allowed}."
            return Flaw("unknown_field", join(pointer, key), message)
    return None


def _not_for_dispatch(reply: Reply) -> Flaw | None:
    """Why no call of this reply may be dispatched whatever it says; the pointer is left to each call."""
    if reply.stop == "length":
        message = (
            "The reply was cut off at the length limit, so none of it was dispatched. "
            "Say less in one reply: one small call, no long text."
        )
        return Flaw("cut_off", "", message)
    if reply.stop == "refusal":
        return Flaw("refused", "", "The provider ended the reply with a refusal, so none of it was dispatched.")
    return None


def _refuse_all(entries: list[_Entry], flaw: Flaw, reply: Reply) -> list[_Read]:
    content = _fingerprint("\0".join(_texts(reply)))
    if not entries:
        return [_Read(Malformed(0, "", flaw.reason, "/stop", flaw.message), content)]
    return [
        _Read(Malformed(n, _label(entry.name), flaw.reason, entry.pointer, flaw.message), content)
        for n, entry in enumerate(entries[: limits.CALLS_PER_PROPOSAL_MAX])
    ]


def _surplus(ordinal: int, entries: list[_Entry]) -> _Read:
    """One complaint for all calls beyond the bound: a list of a million calls must not become a million events."""
    bound = limits.CALLS_PER_PROPOSAL_MAX
    surplus = len(entries) - bound
    message = f"The reply holds {len(entries)} calls; one reply may hold {bound}. The last {surplus} were not read."
    first = entries[bound]
    complaint = Malformed(ordinal, _label(first.name), "too_many_calls", first.pointer, message)
    return _Read(complaint, f"surplus:{surplus}")


# One call


def _read_call(ordinal: int, entry: _Entry) -> _Read:
    name = _label(entry.name)
    flaw = entry.flaw or _name_flaw(entry)
    if flaw is None:
        arguments = _read_arguments(entry)
        if not isinstance(arguments, Flaw):
            call_digest = digest_exact([name, exact(arguments)])
            return _Read(Call(ordinal, name, arguments, call_digest), call_digest)
        flaw = arguments
    return _Read(flaw.complaint(ordinal, name), _fingerprint(entry.arguments))


def _name_flaw(entry: _Entry) -> Flaw | None:
    pointer = f"{entry.pointer}/name"
    match entry.name:
        case None | "":
            return Flaw("missing_name", pointer, "The call has no 'name'; name one of the tools offered.")
        case str() as name if len(name) > NAME_CHARS_MAX:
            message = f"The call's 'name' has {len(name)} characters, the most is {NAME_CHARS_MAX}: {quote(name)}."
            return Flaw("bad_name", pointer, message)
        case str() as name if not name.isprintable():
            return Flaw("bad_name", pointer, f"The call's 'name' holds unprintable characters: {quote(name)}.")
        case str():
            return None
        case other:
            return Flaw("missing_name", pointer, f"The call's 'name' is {kind_of(other)}; it must be a string.")


def _read_arguments(entry: _Entry) -> dict[str, Any] | Flaw:
    pointer = f"{entry.pointer}/arguments"
    value = entry.arguments
    if entry.textual and isinstance(value, str):
        decoded = decode(value, pointer, "'arguments'")
        if isinstance(decoded, Flaw):
            return decoded
        value = decoded.value
    match value:
        case dict():
            return Walk().object(cast("dict[Any, Any]", value), pointer)
        case None:
            return Flaw("null_arguments", pointer, "'arguments' is null; give an object, {} when there are none.")
        case str():
            message = (
                f"'arguments' is a string that holds {quote(value)}; give the object itself, not its text in quotes."
            )
            return Flaw("double_encoded", pointer, message)
        case _:
            return Flaw("not_object", pointer, f"'arguments' is {kind_of(value)}; it must be an object.")


# Digests and texts


def _without_fractions(value: Any, pointer: str, pointers: list[str]) -> Any:
    match value:
        case float():
            pointers.append(pointer)
            return repr(value)
        case dict():
            fields = cast("dict[str, Any]", value)
            # In sorted order, so that equal arguments list equal pointers whatever the order of their keys.
            return {k: _without_fractions(fields[k], exact_pointer(pointer, k), pointers) for k in sorted(fields)}
        case list():
            items = cast("list[Any]", value)
            return [_without_fractions(item, f"{pointer}/{n}", pointers) for n, item in enumerate(items)]
        case _:
            return value


def _proposal(reads: list[_Read], thought: str) -> Proposal:
    """Equal proposals are the same attempt: calls by their digest, complaints by what was complained of."""
    rests_on: list[Any] = []
    for read in reads:
        match read.call:
            case Call():
                rests_on.append(read.fingerprint)
            case Malformed(name=name, reason=reason, pointer=pointer, message=message):
                rests_on.append([name, reason, pointer, message, read.fingerprint])
    return Proposal(tuple(read.call for read in reads), thought, digest(rests_on))


def _fingerprint(value: Any) -> str:
    """A digest of a text that could not be read, only to tell repetition from novelty.

    A decoded value has none: it may have cycles, and the complaint's own text tells enough of it.
    """
    return digest_bytes(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else ""


def _label(name: Any) -> str:
    """A name for people and logs; never used to choose a tool unless the name itself was well-formed."""
    return clip(name, NAME_CHARS_MAX) if isinstance(name, str) else ""


def _visible(text: str) -> str:
    """``text`` without lone surrogates, which no log, file or terminal can hold."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""Two kinds of signature, and agreement with OpenSSH about one of them."""

from __future__ import annotations

import base64
import random
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tests.approvals.openssh import armour, blob, key_blob, key_text, needs_openssh, openssh_accepts, string
from tests.approvals.people import NOW_MS, private, public, ticket

from setpoint.adapters.approvers.signatures import Malformed, fault_of, key_that_signed, parse_key
from setpoint.adapters.approvers.signing import sign_with
from setpoint.kernel.ticket import Decision, SignedDecision, decide, decision_bytes

ANNA = private("anna")
DECISION = decide(ticket(), "approve", "anna", NOW_MS, "checked with the customer")
MESSAGE = decision_bytes(DECISION)
TOUCHED = "ssh:setpoint"


def ssh(armoured: str, key: str | None = None, decision: Decision = DECISION) -> SignedDecision:
    return SignedDecision(decision=decision, scheme="sshsig", key=key or key_text(ANNA), signature=armoured)


def fault(signed: SignedDecision) -> str | None:
    return fault_of(signed, parse_key(signed.key))


def test_what_our_own_key_signs_holds_for_it_and_for_no_other() -> None:
    """R124"""
    signed = sign_with(ANNA, DECISION)
    assert fault_of(signed, parse_key(public("anna"))) is None
    assert "does not match" in (fault_of(signed, parse_key(public("ben"))) or "")


@pytest.mark.parametrize("field", ["ticket_id", "ticket_digest", "verdict", "by", "at_ms", "reason"])
def test_no_field_of_a_decision_can_be_altered_under_its_signature(field: str) -> None:
    """R124"""
    other = decide(ticket(ticket_id="ticket-2"), "deny", "ben", NOW_MS + 1, "other")
    fields = {name: getattr(DECISION, name) for name in Decision.__struct_fields__} | {field: getattr(other, field)}
    altered = Decision(**fields)
    for signed in (sign_with(ANNA, DECISION), ssh(armour(blob(ANNA, MESSAGE)))):
        assert fault(signed) is None
        moved = SignedDecision(decision=altered, scheme=signed.scheme, key=signed.key, signature=signed.signature)
        assert "does not match" in (fault(moved) or "")


@pytest.mark.parametrize(
    "signature", ["", "AAAA", "=", "A" * 88, "ä" * 88, "\ud800", base64.b64encode(bytes(65)).decode()]
)
def test_a_plain_signature_that_is_none_is_an_answer(signature: str) -> None:
    good = sign_with(ANNA, DECISION)
    assert fault(SignedDecision(decision=DECISION, scheme="ed25519", key=good.key, signature=signature)) is not None


def test_a_plain_signature_has_one_spelling() -> None:
    good = sign_with(ANNA, DECISION)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    unused_bit = good.signature[:-3] + letters[letters.index(good.signature[-3]) + 1] + "=="
    assert base64.b64decode(unused_bit) == base64.b64decode(good.signature)
    for other in (good.signature + "\n", good.signature.rstrip("="), unused_bit):
        assert fault(SignedDecision(decision=DECISION, scheme="ed25519", key=good.key, signature=other)) is not None


def test_the_two_kinds_cannot_stand_for_each_other() -> None:
    """R124"""
    plain = sign_with(ANNA, DECISION)
    assert fault(ssh(plain.signature)) is not None
    inner = blob(ANNA, MESSAGE)[-64:]
    crossed = SignedDecision(
        decision=DECISION, scheme="ed25519", key=plain.key, signature=base64.b64encode(inner).decode()
    )
    assert "does not match" in (fault(crossed) or "")


HAND_MADE = {
    "sha512": {},
    "sha256": {"hash_name": "sha256"},
    "a hardware key, touched": {"application": TOUCHED},
    "a hardware key, touched and with PIN": {"application": TOUCHED, "flags": 5},
}


@needs_openssh
@pytest.mark.parametrize("options", HAND_MADE.values(), ids=HAND_MADE)
@pytest.mark.parametrize("width", [70, 76])
def test_what_we_accept_openssh_accepts(tmp_path: Path, options: dict, width: int) -> None:
    """R124"""
    armoured = armour(blob(ANNA, MESSAGE, **options), width)
    key = key_text(ANNA, options.get("application", ""))
    assert fault(ssh(armoured, key)) is None
    assert openssh_accepts(tmp_path, key, MESSAGE, armoured)
    assert key_that_signed(armoured).text == key


WRONG = {
    "another namespace": {"namespace": "git"},
    "no namespace": {"namespace": ""},
    "a longer namespace": {"namespace": "setpoint-approval2"},
    "a weak hash": {"hash_name": "sha1"},
    "an unknown hash": {"hash_name": "sha384"},
    "something reserved": {"reserved": b"x"},
    "version 2": {"version": 2},
    "a byte after it": {"after": b"x"},
    "a byte after the inner one": {"after_inner": b"x"},
    "another inner type": {"kind": "ssh-rsa"},
    "a hardware type of a plain key": {"kind": "sk-ssh-ed25519@openssh.com"},
    "a hardware key that nobody touched": {"application": TOUCHED, "flags": 0},
    "a hardware key with a PIN and no touch": {"application": TOUCHED, "flags": 4},
    "a hardware key made for a web site": {"application": "https://example.org"},
    "a byte after a hardware signature": {"application": TOUCHED, "after_inner": b"x"},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_a_signature_by_the_right_key_that_is_wrong_otherwise_is_refused(options: dict) -> None:
    """R124"""
    signed = ssh(armour(blob(ANNA, MESSAGE, **options)), key_text(ANNA, options.get("application", "")))
    try:
        assert fault(signed) is not None
    except Malformed as malformed:
        assert "not made for SSH" in str(malformed)


def test_a_signature_by_another_key_or_for_another_message_is_refused() -> None:
    """R124"""
    assert "another key" in (fault(ssh(armour(blob(private("ben"), MESSAGE)))) or "")
    assert "does not match" in (fault(ssh(armour(blob(ANNA, MESSAGE + b"\n")))) or "")
    # Ben's signature under Anna's name for the key: the outer key is swapped, the signature stays Ben's.
    swapped = blob(private("ben"), MESSAGE).replace(key_blob(private("ben")), key_blob(ANNA))
    assert "does not match" in (fault(ssh(armour(swapped))) or "")


GOOD = armour(blob(ANNA, MESSAGE))
LINES = GOOD.splitlines(keepends=True)


@pytest.mark.parametrize(
    "armoured",
    [
        "",
        GOOD.rstrip("\n"),
        GOOD + "\n",
        "\n" + GOOD,
        "comment\n" + GOOD,
        GOOD + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("SSH SIGNATURE", "SSH  SIGNATURE"),
        LINES[0] + "\n" + "".join(LINES[1:]),
        "".join(LINES[:-1]) + "\n" + LINES[-1],
        LINES[0] + LINES[1][:20] + "\n" + LINES[1][20:] + "".join(LINES[2:]),
        LINES[0] + " " + "".join(LINES[1:]),
        LINES[0] + LINES[-1],
        LINES[0],
        armour(blob(ANNA, MESSAGE), 80),
        armour(b""),
        armour(b"SSHSIG"),
        armour(b"SSHSIG" + (1).to_bytes(4, "big") + b"\xff\xff\xff\xff"),
        armour(b"PGPSIG" + blob(ANNA, MESSAGE)[6:]),
        armour(blob(ANNA, MESSAGE)[:-1]),
        "-----BEGIN SSH SIGNATURE-----\nA===\n-----END SSH SIGNATURE-----\n",
    ],
)
def test_the_armour_is_exact(armoured: str) -> None:
    """R124"""
    assert fault(ssh(GOOD)) is None
    assert fault(ssh(armoured)) is not None


@given(st.integers(0, len(blob(ANNA, MESSAGE)) * 8 - 1))
def test_no_bit_of_a_signature_may_be_flipped(bit: int) -> None:
    """R124"""
    data = bytearray(blob(ANNA, MESSAGE))
    data[bit // 8] ^= 1 << bit % 8
    assert fault(ssh(armour(bytes(data)))) is not None


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_make_the_verifier_fail(data: bytes, prefixed: bool) -> None:
    assert fault(ssh(armour(blob(ANNA, MESSAGE)[:10] + data if prefixed else data))) is not None


@needs_openssh
def test_openssh_never_refuses_what_we_accept_of_a_hundred_mutations(tmp_path: Path) -> None:
    """R124: seeded; each mutation changes the text around or inside the armour."""
    chance = random.Random(20260101)
    accepted = 0
    for _ in range(100):
        at = chance.randrange(len(GOOD))
        text = GOOD[:at] + chance.choice(["", "\n", "A", "=", " ", "\r", GOOD[at]]) + GOOD[at + 1 :]
        if fault(ssh(text)) is None:
            accepted += 1
            assert openssh_accepts(tmp_path, key_text(ANNA), MESSAGE, text)
    assert 0 < accepted < 50  # those that put the same character back


@needs_openssh
def test_openssh_and_we_refuse_the_same_forgeries(tmp_path: Path) -> None:
    """R124"""
    for options in ({"namespace": "git"}, {"after": b"x"}, {"reserved": b"x"}, {"version": 2}, {"kind": "ssh-rsa"}):
        armoured = armour(blob(ANNA, MESSAGE, **options))
        assert fault(ssh(armoured)) is not None
        assert not openssh_accepts(tmp_path, key_text(ANNA), MESSAGE, armoured)


def test_a_key_has_one_spelling_and_its_comment_is_dropped() -> None:
    assert parse_key(f"  {public('anna')}   anna@laptop, the old one\n").text == public("anna")
    assert parse_key(key_text(ANNA, TOUCHED)).application == TOUCHED.encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 !!!!",
        "ssh-ed25519 AAAA",
        public("anna") + "\n" + public("ben"),
        public("anna").replace("ssh-ed25519 ", "sk-ssh-ed25519@openssh.com "),
        key_text(ANNA, TOUCHED).replace("sk-ssh-ed25519@openssh.com ", "ssh-ed25519 "),
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==",
        "ssh-ed25519 " + base64.b64encode(string(b"ssh-ed25519") + string(bytes(31))).decode(),
        "ssh-ed25519 " + base64.b64encode(key_blob(ANNA) + b"x").decode(),
        'from="*" ' + public("anna"),
        "ssh-ed25519 " + "\ud800",
    ],
)
def test_a_key_that_cannot_approve_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_key(text)


@needs_openssh
def test_a_key_made_by_ssh_keygen_is_read(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a b c", "-f", tmp_path / "id"], check=True)
    assert parse_key((tmp_path / "id.pub").read_text()).text in (tmp_path / "id.pub").read_text()


def test_an_unrelated_key_verifies_nothing() -> None:
    assert fault(ssh(GOOD, key_text(Ed25519PrivateKey.generate()))) is not None

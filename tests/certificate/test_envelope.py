"""Canonical bytes, DSSE and keys' names."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from setpoint.certificate import canonical as own
from setpoint.certificate import dsse
from setpoint.kernel import keys

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEY = Ed25519PrivateKey.from_private_bytes(b"\x01" * 32)


@given(json_values)
def test_the_verifier_spells_every_value_as_the_runtime_does(value: object) -> None:
    assert own.canonical(value) == keys.canonical(value)
    assert own.digest(value) == keys.digest(value)
    assert own.parse(own.canonical(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"b":1,"a":2}',
        '{"a":1,"a":1}',
        "1.0",
        "1e3",
        "NaN",
        "-0",
        '"\\u0041"',
        "[1]\n",
        "",
        "[" * 5000,
        "9" * 5000,
    ],
)
def test_another_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"canonical|Expecting|digits"):
        own.parse(text.encode())


def test_invalid_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match="canonical"):
        own.parse(b'"\xff"')


@given(st.binary(max_size=40))
def test_base64_has_one_spelling(data: bytes) -> None:
    text = own.to_base64(data)
    assert own.from_base64(text) == data
    for other in (text + "\n", text + "=", text + "A", " " + text):
        with pytest.raises(ValueError, match="base64"):
            own.from_base64(other)


def test_unused_bits_in_base64_are_refused() -> None:
    assert own.from_base64("QQ==") == b"A"
    with pytest.raises(ValueError, match="unused bits"):
        own.from_base64("QR==")


def test_the_pre_authentication_encoding_is_that_of_the_dsse_specification() -> None:
    assert dsse.pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@given(st.binary(max_size=200))
def test_what_is_signed_verifies_and_nothing_else_does(payload: bytes) -> None:
    envelope = dsse.sign(payload, KEY)
    sealed = dsse.opened(json.loads(json.dumps(envelope)))
    assert sealed.payload == payload
    assert dsse.signed_by(sealed, KEY.public_key())
    assert not dsse.signed_by(sealed, Ed25519PrivateKey.from_private_bytes(b"\x02" * 32).public_key())
    assert dsse.sign(payload, KEY) == envelope  # deterministic
    changed = dsse.opened({**envelope, "payload": own.to_base64(payload + b"x")})
    assert not dsse.signed_by(changed, KEY.public_key())


def test_an_envelope_with_anything_more_or_less_is_refused() -> None:
    good = dsse.sign(b"x", KEY)
    signature = good["signatures"][0]
    for bad in (
        None,
        {},
        {**good, "extra": 1},
        {**good, "signatures": []},
        {**good, "signatures": [signature, signature]},
        {**good, "signatures": [{**signature, "extra": 1}]},
        {**good, "payloadType": "text/plain"},
        {**good, "payload": 1},
    ):
        with pytest.raises(ValueError, match=r"DSSE|payloadType"):
            dsse.opened(bad)


def test_a_private_key_is_not_taken_for_a_public_one() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(ValueError, match="private key"):
        dsse.read_public_key(pem)
    with pytest.raises(ValueError, match="PEM"):
        dsse.read_public_key(b"hello")

"""The Merkle tree against the naive recursive definition of RFC 9162 section 2.1."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from setpoint.certificate import merkle

entries = st.lists(st.binary(max_size=8), max_size=40)


def naive_root(data: Sequence[bytes]) -> bytes:
    """MTH as the RFC writes it."""
    if not data:
        return hashlib.sha256(b"").digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    split = 1
    while split * 2 < len(data):
        split *= 2
    return hashlib.sha256(b"\x01" + naive_root(data[:split]) + naive_root(data[split:])).digest()


def naive_path(data: Sequence[bytes], index: int) -> list[bytes]:
    """PATH(m, D[n]) as the RFC writes it."""
    if len(data) == 1:
        return []
    split = 1
    while split * 2 < len(data):
        split *= 2
    if index < split:
        return [*naive_path(data[:split], index), naive_root(data[split:])]
    return [*naive_path(data[split:], index - split), naive_root(data[:split])]


def naive_subproof(data: Sequence[bytes], earlier: int, complete: bool) -> list[bytes]:
    """SUBPROOF(m, D[n], b) as the RFC writes it."""
    if earlier == len(data):
        return [] if complete else [naive_root(data)]
    split = 1
    while split * 2 < len(data):
        split *= 2
    if earlier <= split:
        return [*naive_subproof(data[:split], earlier, complete), naive_root(data[split:])]
    return [*naive_subproof(data[split:], earlier - split, False), naive_root(data[:split])]


def leaves(data: Sequence[bytes]) -> list[bytes]:
    return [merkle.leaf_hash(entry) for entry in data]


@given(entries)
def test_the_root_is_that_of_the_recursive_definition(data: list[bytes]) -> None:
    assert merkle.root(leaves(data)) == naive_root(data)


def test_known_roots_of_the_certificate_transparency_test_vectors_hold() -> None:
    data = [b"", b"\x00", b"\x10", b"\x20\x21", b"\x30\x31", b"\x40\x41\x42\x43"]
    assert merkle.root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert merkle.root(leaves(data[:1])).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert merkle.root(leaves(data[:2])).hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"


@given(st.data(), entries.filter(bool))
def test_an_inclusion_proof_is_the_rfc_path_and_verifies(draw: st.DataObject, data: list[bytes]) -> None:
    index = draw.draw(st.integers(0, len(data) - 1))
    proof = merkle.inclusion_proof(leaves(data), index)
    assert proof == naive_path(data, index)
    assert merkle.verify_inclusion(merkle.leaf_hash(data[index]), index, len(data), proof, naive_root(data))


@given(st.data(), entries.filter(bool))
def test_an_inclusion_proof_verifies_nothing_else(draw: st.DataObject, data: list[bytes]) -> None:
    index = draw.draw(st.integers(0, len(data) - 1))
    proof, root = merkle.inclusion_proof(leaves(data), index), naive_root(data)
    leaf = merkle.leaf_hash(data[index])
    assert not merkle.verify_inclusion(merkle.leaf_hash(data[index] + b"x"), index, len(data), proof, root)
    assert not merkle.verify_inclusion(leaf, len(data), len(data), proof, root)
    assert not merkle.verify_inclusion(leaf, -1, len(data), proof, root)
    assert not merkle.verify_inclusion(leaf, index, len(data), [*proof, b"\x00" * 32], root)
    if proof:
        assert not merkle.verify_inclusion(leaf, index, len(data), proof[:-1], root)
        wrong = draw.draw(st.integers(0, len(proof) - 1))
        assert not merkle.verify_inclusion(
            leaf, index, len(data), [*proof[:wrong], b"\x00" * 32, *proof[wrong + 1 :]], root
        )


@given(st.data(), entries)
def test_a_consistency_proof_is_the_rfc_subproof_and_verifies(draw: st.DataObject, data: list[bytes]) -> None:
    earlier = draw.draw(st.integers(0, len(data)))
    proof = merkle.consistency_proof(leaves(data), earlier)
    assert proof == ([] if earlier == 0 else naive_subproof(data, earlier, True))
    assert merkle.verify_consistency(earlier, len(data), naive_root(data[:earlier]), naive_root(data), proof)


@given(st.data(), entries.filter(lambda data: len(data) > 1))
def test_a_rewritten_prefix_has_no_consistency_proof(draw: st.DataObject, data: list[bytes]) -> None:
    earlier = draw.draw(st.integers(1, len(data) - 1))
    other = [data[0] + b"x", *data[1:]]
    root, proof = naive_root(data), merkle.consistency_proof(leaves(data), earlier)
    assert not merkle.verify_consistency(earlier, len(data), naive_root(other[:earlier]), root, proof)
    assert not merkle.verify_consistency(earlier, len(data), naive_root(data[:earlier]), naive_root(other), proof)
    assert not merkle.verify_consistency(len(data), earlier, root, naive_root(data[:earlier]), proof)
    assert not merkle.verify_consistency(earlier, len(data), naive_root(data[:earlier]), root, proof[:-1])

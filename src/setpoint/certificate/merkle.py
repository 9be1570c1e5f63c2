"""The Merkle tree of RFC 9162 (Certificate Transparency) over the events of a log.

The root and the size commit to every event and to how many there are, so a cut tail shows; an inclusion proof shows one
event without the others; a consistency proof shows that an earlier head is a prefix of a later one. Leaf and node
hashes carry different prefixes, so a node can never be passed off as an event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

ALGORITHM: Final = "rfc9162-sha256"


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Root over leaf hashes (``leaf_hash`` of each entry, in order). The empty tree is the hash of nothing.

    Pairs each level and carries an odd last node up unchanged: the same tree as the recursive split at the largest
    power of two, in linear time and without recursion.
    """
    if not leaves:
        return hashlib.sha256(b"").digest()
    level = list(leaves)
    while len(level) > 1:
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level = paired
    return level[0]


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Sibling hashes from leaf ``index`` (from 0) up to the root. IndexError when there is no such leaf."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"the tree has {len(leaves)} leaves, there is no leaf {index}")
    proof: list[bytes] = []
    level = list(leaves)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            proof.append(level[sibling])
        paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            paired.append(level[-1])
        level, index = paired, index // 2
    return proof


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether ``proof`` shows that ``leaf`` is number ``index`` (from 0) of the tree of ``size`` leaves with that root.

    RFC 9162 section 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    at, last, running = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            running = node_hash(sibling, running)
            while not at & 1 and at != 0:
                at, last = at >> 1, last >> 1
        else:
            running = node_hash(running, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and running == expected_root


def consistency_proof(leaves: Sequence[bytes], earlier: int) -> list[bytes]:
    """Hashes showing that the first ``earlier`` leaves are a prefix of ``leaves``; empty when trivially so."""
    if not 0 <= earlier <= len(leaves):
        raise IndexError(f"the tree has {len(leaves)} leaves, there is no earlier tree of {earlier}")
    if earlier in (0, len(leaves)):
        return []
    proof: list[bytes] = []
    rest, complete = list(leaves), True
    while earlier != len(rest):
        split = 1 << ((len(rest) - 1).bit_length() - 1)
        if earlier <= split:
            proof.append(root(rest[split:]))
            rest = rest[:split]
        else:
            proof.append(root(rest[:split]))
            rest, earlier, complete = rest[split:], earlier - split, False
    if not complete:
        proof.append(root(rest))
    return proof[::-1]


def verify_consistency(
    earlier: int, later: int, earlier_root: bytes, later_root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether ``proof`` shows that the tree of ``earlier`` leaves is a prefix of that of ``later`` leaves.

    RFC 9162 section 2.1.4.2. The empty tree is a prefix of every tree.
    """
    if not 0 <= earlier <= later:
        return False
    if earlier == later:
        return not proof and earlier_root == later_root
    if earlier == 0:
        return not proof and earlier_root == root([])
    path = list(proof)
    if earlier & (earlier - 1) == 0:
        path.insert(0, earlier_root)
    if not path:
        return False
    at, last = earlier - 1, later - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while not at & 1 and at != 0:
                at, last = at >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and first == earlier_root and second == later_root

"""The faster digest is the digest, for everything it may be given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.keys import digest, digest_exact

_TEXT = st.text(st.characters(codec="utf-8"))
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
    max_leaves=20,
)


@given(_PLAIN)
def test_the_exact_digest_of_plain_json_is_its_digest(value):
    assert digest_exact(value) == digest(value)

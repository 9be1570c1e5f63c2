"""Blanking what the contract's patterns match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from setpoint.kernel.redaction import REDACTED, redact

KEY = r"(?i)api[_-]?key\s*[:=]\s*\S+"


def test_every_match_is_blanked_and_the_rest_stays():
    """R239"""
    text = "host = a\nAPI_KEY=hunter2 and api-key: other\nend"
    assert redact(text, [KEY]) == f"host = a\n{REDACTED} and {REDACTED}\nend"


@given(st.text(), st.text(alphabet="abc123", min_size=1))
def test_a_secret_never_survives_its_pattern(around, secret):
    """R239"""
    assert f"key={secret}" not in redact(f"{around} key={secret} {around}", [r"key=\w+"])


def test_an_expression_that_explodes_blanks_the_whole_text_within_its_bound():
    """L7, L10: the supervisor is not held up, and nothing that was not searched through is shown."""
    said = redact("a" * 60 + "b secret", [r"(a|aa)+$"])
    assert "secret" not in said and "(a|aa)+$" in said


def test_without_patterns_nothing_changes():
    assert redact("API_KEY=x", []) == "API_KEY=x"

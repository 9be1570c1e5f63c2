"""Untrusted text inside a prompt: framed as data, with its source, and unable to close its own frame (R211)."""

from __future__ import annotations

import re
from html import escape
from typing import Final

from setpoint.kernel.spelling import one_line

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def frame(kind: str, text: str, **attributes: str) -> str:
    """``text`` between ``<kind ...>`` and ``</kind>``; delimiters and control characters inside are escaped."""
    head = " ".join(f'{name}="{escape(one_line(value))}"' for name, value in attributes.items())
    # Any tag of our own inside the text, opening or closing, in any case or spacing, loses its bracket.
    inside = re.sub(rf"<(\s*/?\s*(?:{kind}|observation|file)\b)", r"&lt;\1", text, flags=re.IGNORECASE)
    inside = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", inside)
    inside = inside.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"<{kind} {head}>\n{inside}\n</{kind}>"

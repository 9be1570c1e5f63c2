"""The right fix of sqlparse 0.4.1 and three wrong ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for turns.py: nothing here is installed

from turns import Edit

FILTER = "sqlparse/filters/others.py"
SEARCH = "            m = re.search(r'((\\r\\n|\\r|\\n)+) *$', token.value)\n"


def search(pattern: str) -> Edit:
    return Edit(FILTER, SEARCH, f"            m = re.search(r'{pattern}', token.value)\n")


# What 0.4.2 does: no two alternatives match the same text, so there is nothing to try again.
RIGHT = (search(r"((\r|\n)+) *$"),)

WRONG = {
    # No search, no backtracking, no line breaks: the package's own tests notice.
    "no-search": (Edit(FILTER, SEARCH, "            m = None\n"),),
    # A bound makes the wait finite, not short, and drops what lies beyond it: the golden tests notice.
    "bounded": (search(r"((\r\n|\r|\n){1,16}) *$"),),
    # Fast, and right for Unix and Windows, but a lone carriage return is a line break too: the held-out check notices.
    "no-lone-return": (search(r"((\r?\n)+) *$"),),
}

"""The right fix of cachetools 4.2.0 and three wrong ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for turns.py: nothing here is installed

from turns import Edit

ORDERED = """\
        value = cache_getitem(self, key)
        self.__update(key)
        return value
"""
COUNTED = """\
        value = cache_getitem(self, key)
        self.__counter[key] -= 1
        return value
"""


def guarded(body: str, condition: str) -> str:
    first, second, third = body.splitlines(keepends=True)
    return f"{first}        if {condition}:\n    {second}{third}"


def in_every_class(condition: str) -> tuple[Edit, ...]:
    return (
        Edit("cachetools/lfu.py", COUNTED, guarded(COUNTED, condition)),
        Edit("cachetools/lru.py", ORDERED, guarded(ORDERED, condition)),
        Edit("cachetools/mru.py", ORDERED, guarded(ORDERED, condition)),
    )


# What 4.2.1 does, without its comments.
RIGHT = in_every_class("key in self")

WRONG = {
    # Keeps too large values out by never refusing them: the package's own tests notice.
    "drop-too-large": (
        Edit(
            "cachetools/cache.py",
            "        if size > maxsize:\n            raise ValueError('value too large')\n",
            "        if size > maxsize:\n            return\n",
        ),
    ),
    # "Falsy means missing" is true of the reported example only: the golden tests notice.
    "guard-on-value": in_every_class("value"),
    # Right, but only for the class that the report names: the held-out check notices.
    "only-lru": tuple(change for change in RIGHT if change.path.endswith("lru.py")),
}

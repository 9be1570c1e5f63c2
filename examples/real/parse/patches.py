"""The right fix of parse 1.17.0 and three wrong ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for turns.py: nothing here is installed

from turns import Edit

MODULE = "parse.py"

GUARD = "        if self.base is None:\n"
ENDING = """\
        chars = int_convert.CHARS[: self.base]
        string = re.sub('[^%s]' % chars, '', string.lower())
        return sign * int(string, self.base)
"""
CONVERSION = (
    """\
        # If base wasn't specified, detect it automatically
        if self.base is None:

            # Assume decimal number, unless different base is detected
            self.base = 10

            # For number formats starting with 0b, 0o, 0x, use corresponding base ...
            if string[number_start] == '0' and len(string) - number_start > 2:
                if string[number_start + 1] in 'bB':
                    self.base = 2
                elif string[number_start + 1] in 'oO':
                    self.base = 8
                elif string[number_start + 1] in 'xX':
                    self.base = 16

"""
    + ENDING
)

# What 1.18.0 does: the base found in one number is a local of that conversion.
RIGHT = (
    Edit(
        MODULE,
        CONVERSION,
        "        base = self.base\n"
        + CONVERSION.replace("self.base", "base").replace("CHARS[: base]", "CHARS[:base]"),
    ),
)

WRONG = {
    # Always look for a prefix: hexadecimal fields lose their base, and the package's own tests notice.
    "detect-always": (Edit(MODULE, GUARD, "        if True:\n"),),
    # Look again after a decimal number only: the golden tests notice.
    "redetect-after-ten": (Edit(MODULE, GUARD, "        if self.base in (None, 10):\n"),),
    # Forget the base after every number, also one the format asked for: the held-out check notices.
    "forget-afterwards": (
        Edit(
            MODULE,
            ENDING,
            ENDING.replace(
                "        return sign * int(string, self.base)\n",
                "        value = sign * int(string, self.base)\n        self.base = None\n        return value\n",
            ),
        ),
    ),
}

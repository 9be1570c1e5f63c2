"""Held-out oracle: random comments and line breaks of every kind.

Runs where no code of the candidate is. ``driver.py`` travels with each case to the candidate's sandbox. The right
answer needs no SQL parser: the statements were built from it.
"""

import re
from pathlib import Path

DRIVER = Path(__file__).with_name("driver.py").read_text()
PLAY = "(exec(driver, names), names['strip'](sql))[1]"

CASES = 100
BREAKS = ("\n", "\r", "\r\n")


def cases(rng):
    """Line breaks inside a comment vanish with it; those after it stay, each as one newline."""
    for number in range(CASES):
        hostile = BREAKS[number % 3] * rng.randint(30, 90) if number % 10 == 5 else ""
        comment = rng.choice(("/* c%s */", "/*%sx*/", "/*+ hint%s */")) % hostile
        if number % 4 == 0:
            comment = rng.choice(("-- c", "# c", "--c", "--+ hint"))
        after = "".join(rng.choice(BREAKS) for _ in range(rng.randint(1, 7)))
        indent = " " * rng.choice((0, 0, 2))
        # "\r" followed by "\n" reads as one Windows break, so they are counted on the text itself.
        kept = "\n" * len(re.findall(r"\r\n|\r|\n", after))
        sql = f"select a {comment}{after}{indent}from b{number}"
        yield {
            "call": "builtins:eval",
            "args": [PLAY, {"driver": DRIVER, "names": {}, "sql": sql}],
            "name": f"comment {number}",
            "expected": f"select a{kept}from b{number}",
        }


def judge(case, outcome):
    if "raised" in outcome:
        return f"raised {outcome['raised']}: {outcome['message']}"
    return None if outcome["value"] == case["expected"] else f"gave {outcome['value']!r}"

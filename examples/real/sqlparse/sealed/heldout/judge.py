"""Held-out: random comments and line breaks of every kind, stripped by a child, judged here.

This process never imports the candidate. Expected text is known because the statements were built from it.
Prints TAP; exits 1 when a case fails.
"""

import json
import os
import random
import re
import subprocess
import sys

CASES = 120
SEED = 20210910
CPU_SECONDS = 4
WALL_SECONDS = 50

BREAKS = ("\n", "\r", "\r\n")


def cases():
    """(sql, expected): line breaks inside a comment vanish with it, those after it stay, each as one newline."""
    chance = random.Random(SEED)
    for number in range(CASES):
        hostile = chance.choice(BREAKS) * chance.randint(30, 90) if number % 4 == 3 else ""
        comment = chance.choice(("/* c%s */", "/*%sx*/", "/*+ hint%s */")) % hostile
        if number % 4 == 0:
            comment = chance.choice(("-- c", "# c", "--c", "--+ hint"))
        # "\r" before "\n" would read as one Windows break, so how many there are is counted on the text itself.
        after = "".join(chance.choice(BREAKS) for _ in range(chance.randint(1, 7)))
        indent = " " * chance.choice((0, 0, 2))
        kept = "\n" * len(re.findall(r"\r\n|\r|\n", after))
        yield f"select a {comment}{after}{indent}from b{number}", f"select a{kept}from b{number}"


def observe(questions):
    """One answer per question; a child that dies or runs out of processor time leaves the rest unanswered (None)."""
    limited = (
        "import resource, runpy, sys; "
        f"resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS})); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", limited, child],
            input=json.dumps(questions),
            stdout=subprocess.PIPE,
            text=True,
            timeout=WALL_SECONDS,
            check=False,
        )
        seen = [json.loads(line) for line in done.stdout.splitlines()]
    except (subprocess.TimeoutExpired, ValueError) as error:
        print(f"# the child gave no usable answer: {error}")
        seen = []
    return seen[: len(questions)] + [None] * (len(questions) - len(seen))


def main():
    known = list(cases())
    answers = observe([sql for sql, _ in known])
    failed = 0
    print(f"1..{len(known)}")
    for number, ((sql, expected), answer) in enumerate(zip(known, answers, strict=True), 1):
        right = answer == expected
        failed += not right
        print(f"{'ok' if right else 'not ok'} {number}{'' if right else f' - {sql[:60]!r} gave {answer!r}'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

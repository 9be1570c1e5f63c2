"""Held-out: random runs of numbers through one compiled parser, parsed by a child, judged here.

This process never imports the candidate. Expected values are known because the numbers were written from them.
Prints TAP; exits 1 when a case fails.
"""

import json
import os
import random
import subprocess
import sys

CASES = 120
SEED = 20200910
CPU_SECONDS = 20
WALL_SECONDS = 50

WRITTEN = {2: "{:b}", 8: "{:o}", 10: "{:d}", 16: "{:x}"}
PREFIX = {2: "0b", 8: "0o", 10: "", 16: "0x"}
FORMATS = {"d": (2, 8, 10, 16), "x": (16,), "b": (2,), "o": (8,)}


def written(chance, letter):
    """A number as text, and what it is."""
    value = chance.randint(0, 5000)
    base = chance.choice(FORMATS[letter])
    text = WRITTEN[base].format(value)
    if letter == "d" or chance.random() < 0.5:
        text = PREFIX[base] + text
    if letter == "d" and chance.random() < 0.3:
        return "-" + text, -value
    return text, value


def cases():
    """(format, texts, values): one parser reads all the texts in turn."""
    chance = random.Random(SEED)
    for number in range(CASES):
        letters = [chance.choice("ddxbo") for _ in range(1 + number % 3)]
        texts, values = [], []
        for _ in range(chance.randint(2, 6)):
            fields = [written(chance, letter) for letter in letters]
            texts.append(";".join(text for text, _ in fields))
            values.append([value for _, value in fields])
        yield ";".join(f"{{:{letter}}}" for letter in letters), texts, values


def observe(questions):
    """One answer per question; a child that dies leaves the rest unanswered (None)."""
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
    answers = observe([[format, texts] for format, texts, _ in known])
    failed = 0
    print(f"1..{len(known)}")
    for number, ((format, texts, values), answer) in enumerate(zip(known, answers, strict=True), 1):
        right = answer == values
        failed += not right
        print(
            f"{'ok' if right else 'not ok'} {number} - {format}{'' if right else f': {texts} gave {answer}'}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

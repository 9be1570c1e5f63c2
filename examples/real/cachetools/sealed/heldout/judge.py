"""Held-out: random histories on every cache class, replayed by a child, judged here.

This process never imports the candidate. The child maps each history to what it observed, as JSON; the laws are
checked against a plain dict kept here. Prints TAP; exits 1 when a case fails.
"""

import json
import os
import random
import subprocess
import sys

CLASSES = ("Cache", "FIFOCache", "LFUCache", "LRUCache", "MRUCache", "RRCache", "TTLCache")
HISTORIES = 40
SEED = 20210124
CPU_SECONDS = 20
WALL_SECONDS = 50


def histories():
    """(class, maxsize, sized, operations); odd keys are never stored by ``__missing__``, large ones cannot be."""
    chance = random.Random(SEED)
    for kind in CLASSES:
        for _ in range(HISTORIES):
            maxsize = chance.randint(2, 6)
            operations = [
                [chance.choice(("get", "get", "get", "set", "pop", "del")), chance.randint(1, 9)]
                for _ in range(chance.randint(5, 40))
            ]
            yield [kind, maxsize, chance.random() < 0.5, operations]


def fault(case, seen):
    """The first broken law of one observed history, or an empty string."""
    _, maxsize, sized, operations = case
    if "raised" in seen:
        return f"raised {seen['raised']}"
    if len(seen["steps"]) != len(operations):
        return "the history was cut short"
    kept = set()
    for (operation, key), step in zip(operations, seen["steps"], strict=True):
        before, kept = kept, set(step["keys"])
        if step["currsize"] != sum(key if sized else 1 for key in kept):
            return f"currsize {step['currsize']} after {operation} {key} does not fit the keys {sorted(kept)}"
        if step["currsize"] > maxsize or step["len"] != len(kept):
            return f"{step['len']} keys of size {step['currsize']} in a cache of {maxsize}"
        if operation == "get" and step["value"] != key:
            return f"cache[{key}] gave {step['value']}"
        if operation == "get" and key not in before and key % 2 and kept != before:
            return f"a key that __missing__ does not store changed the keys to {sorted(kept)}"
        if operation == "set" and (not sized or key <= maxsize) and key not in kept:
            return f"{key} was not stored"
        if operation == "del" and kept != before - {key}:
            return f"deleting {key} changed {sorted(before)} to {sorted(kept)}"
        if operation == "pop" and before and len(kept) != len(before) - 1:
            return f"popitem changed {sorted(before)} to {sorted(kept)}"
    if sorted(seen["drained"]) != sorted([key, key] for key in kept):
        return f"popitem gave {seen['drained']}, but {sorted(kept)} was stored"
    return ""


def observe(cases):
    """One observation per case; a child that dies or lies about its output leaves the rest unobserved."""
    limited = (
        "import resource, runpy, sys; "
        f"resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS})); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", limited, child],
            input=json.dumps(cases),
            stdout=subprocess.PIPE,
            text=True,
            timeout=WALL_SECONDS,
            check=False,
        )
        seen = [json.loads(line) for line in done.stdout.splitlines()]
    except (subprocess.TimeoutExpired, ValueError) as error:
        print(f"# the child gave no usable answer: {error}")
        seen = []
    return seen[: len(cases)] + [{"raised": "nothing was observed"}] * (len(cases) - len(seen))


def main():
    cases = list(histories())
    failed = 0
    print(f"1..{len(cases)}")
    for number, (case, seen) in enumerate(zip(cases, observe(cases), strict=True), 1):
        try:
            broken = fault(case, seen)
        except (KeyError, TypeError, AttributeError) as error:
            broken = f"malformed observation: {error!r}"
        failed += bool(broken)
        print(
            f"{'not ok' if broken else 'ok'} {number} - {case[0]} of {case[1]}{': ' + broken if broken else ''}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

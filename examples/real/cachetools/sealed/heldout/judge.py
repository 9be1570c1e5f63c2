"""Held-out oracle: random histories on every cache class, judged by laws that any cache keeps.

Runs where no code of the candidate is. ``driver.py`` travels with each case to the candidate's sandbox and plays the
history there; what it observed comes back as JSON. Odd keys are never stored by ``__missing__``, large ones cannot be.
"""

from pathlib import Path

DRIVER = Path(__file__).with_name("driver.py").read_text()
PLAY = "(exec(driver, names), names['play'](*history))[1]"

CLASSES = ("Cache", "FIFOCache", "LFUCache", "LRUCache", "MRUCache", "RRCache", "TTLCache")
HISTORIES = 40  # of each class


def cases(rng):
    for kind in CLASSES:
        for number in range(1, HISTORIES + 1):
            operations = [
                [rng.choice(("get", "get", "get", "set", "pop", "del")), rng.randint(1, 9)]
                for _ in range(rng.randint(5, 40))
            ]
            history = [kind, rng.randint(2, 6), rng.random() < 0.5, operations]
            yield {
                "call": "builtins:eval",
                "args": [PLAY, {"driver": DRIVER, "names": {}, "history": history}],
                "name": f"{kind} history {number}",
                "history": history,
            }


def judge(case, outcome):
    """None, or the first law that the observed history breaks."""
    if "raised" in outcome:
        return f"raised {outcome['raised']}: {outcome['message']}"
    _, maxsize, sized, operations = case["history"]
    seen = outcome["value"]
    if len(seen["steps"]) != len(operations):
        return "the history was cut short"
    kept = set()
    for (operation, key), step in zip(operations, seen["steps"], strict=True):
        before, kept = kept, set(step["keys"])
        broken = broken_by_state(step, kept, maxsize, sized)
        broken = broken or broken_by_step(operation, key, step, before, kept, maxsize, sized)
        if broken:
            return f"after {operation} {key}: {broken}"
    if sorted(seen["drained"]) != sorted([key, key] for key in kept):
        return f"popitem gave {seen['drained']}, but {sorted(kept)} was stored"
    return None


def broken_by_state(step, kept, maxsize, sized):
    if step["currsize"] != sum(key if sized else 1 for key in kept):
        return f"currsize {step['currsize']} does not fit the keys {sorted(kept)}"
    if step["currsize"] > maxsize or step["len"] != len(kept):
        return f"{step['len']} keys of size {step['currsize']} in a cache of {maxsize}"
    return None


def broken_by_step(operation, key, step, before, kept, maxsize, sized):
    if operation == "get" and step["value"] != key:
        return f"the value is {step['value']}"
    if operation == "get" and key not in before and key % 2 and kept != before:
        return f"a key that __missing__ does not store changed {sorted(before)} to {sorted(kept)}"
    if operation == "set" and (not sized or key <= maxsize) and key not in kept:
        return "the key is not stored"
    if operation == "del" and kept != before - {key}:
        return f"{sorted(before)} became {sorted(kept)}"
    if operation == "pop" and before and len(kept) != len(before) - 1:
        return f"{sorted(before)} became {sorted(kept)}"
    return None

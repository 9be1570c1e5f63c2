"""Numbers the model has never seen. The candidate computes them in a sandbox of its own; only this file judges."""

VALUES = (("M", 1000), ("CM", 900), ("D", 500), ("CD", 400), ("C", 100), ("XC", 90), ("L", 50), ("XL", 40),
          ("X", 10), ("IX", 9), ("V", 5), ("IV", 4), ("I", 1))  # fmt: skip


def cases(rng):
    for number in rng.sample(range(1, 4000), 60):
        yield {"call": "roman:roman", "args": [number]}


def judge(case, outcome):
    number = case["args"][0]
    wanted, rest = "", number
    for letters, value in VALUES:
        wanted += letters * (rest // value)
        rest %= value
    return None if outcome == {"value": wanted} else f"roman({number}) should be {wanted}"

"""Held-out oracle: random runs of numbers through one compiled parser.

Runs where no code of the candidate is. ``driver.py`` travels with each case to the candidate's sandbox. The right
answer needs no parser: the texts were written from the numbers.
"""

from pathlib import Path

DRIVER = Path(__file__).with_name("driver.py").read_text()
PLAY = "(exec(driver, names), names['read'](format, texts))[1]"

CASES = 120
WRITTEN = {2: "{:b}", 8: "{:o}", 10: "{:d}", 16: "{:x}"}
PREFIX = {2: "0b", 8: "0o", 10: "", 16: "0x"}
BASES = {"d": (2, 8, 10, 16), "x": (16,), "b": (2,), "o": (8,)}


def written(rng, letter):
    """A number as text, and what it is. Only a prefix tells the base of a ``{:d}`` field."""
    value = rng.randint(0, 5000)
    base = rng.choice(BASES[letter])
    text = WRITTEN[base].format(value)
    if letter == "d" or rng.random() < 0.5:
        text = PREFIX[base] + text
    if letter == "d" and rng.random() < 0.3:
        return "-" + text, -value
    return text, value


def cases(rng):
    for number in range(CASES):
        letters = [rng.choice("ddxbo") for _ in range(1 + number % 3)]
        format = ";".join(f"{{:{letter}}}" for letter in letters)
        texts, values = [], []
        for _ in range(rng.randint(2, 6)):
            fields = [written(rng, letter) for letter in letters]
            texts.append(";".join(text for text, _ in fields))
            values.append([value for _, value in fields])
        yield {
            "call": "builtins:eval",
            "args": [PLAY, {"driver": DRIVER, "names": {}, "format": format, "texts": texts}],
            "name": f"{format} number {number}",
            "texts": texts,
            "values": values,
        }


def judge(case, outcome):
    if "raised" in outcome:
        return f"raised {outcome['raised']}: {outcome['message']}"
    return None if outcome["value"] == case["values"] else f"{case['texts']} gave {outcome['value']}"

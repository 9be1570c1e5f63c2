"""Inside the candidate's sandbox: run the calls an oracle names and write down what came of them.

Nothing here is trusted by anyone: the answers are data, and code of the candidate may forge every one of them. That
does not help it, since the right answers are known to the judge alone, which runs elsewhere.

Calls run in order in one forked interpreter. When it dies the call it was at is marked as died and the rest go on in a
new one; a call marked ``fresh`` gets an interpreter of its own. The import path is arranged by our sitecustomize.
"""

import importlib
import json
import os
import sys
from typing import Any

ANSWER_BYTES_MAX = 256 * 1024
MESSAGE_CHARS_MAX = 2000


def main() -> None:
    calls = json.load(sys.stdin)["calls"]
    outcomes: list[str] = []
    while len(outcomes) < len(calls):
        outcomes += run_batch(calls, len(outcomes))
    with open("/out/outcomes.json", "w", encoding="utf-8") as file:
        file.write("[" + ",".join(outcomes) + "]")


def run_batch(calls: list[dict[str, Any]], first: int) -> list[str]:
    """Outcomes of ``calls[first:]`` as far as one interpreter gets; at least one."""
    last = first + 1
    while last < len(calls) and not calls[first].get("fresh") and not calls[last].get("fresh"):
        last += 1
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            with os.fdopen(write, "w", encoding="ascii") as pipe:
                for call in calls[first:last]:
                    pipe.write(answer(call) + "\n")
                    pipe.flush()
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="ascii", errors="replace") as pipe:
        lines = pipe.read().splitlines()[: last - first]
    status = os.waitpid(child, 0)[1]
    if len(lines) < last - first:
        code = os.waitstatus_to_exitcode(status)
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        lines.append(json.dumps({"died": f"the process ended during the call with {how}"}))
    return lines


def answer(call: dict[str, Any]) -> str:
    """One outcome as a line of JSON."""
    try:
        module, _, path = call["call"].partition(":")
        target: Any = importlib.import_module(module)
        for name in path.split("."):
            target = getattr(target, name)
        value = target(*call["args"], **call["kwargs"])
    except BaseException as raised:  # noqa: BLE001 - whatever a call raises, SystemExit included, is its outcome
        return json.dumps({"raised": type(raised).__name__, "message": message_of(raised)})
    try:
        line = json.dumps({"value": value}, allow_nan=False)
    except BaseException as raised:  # noqa: BLE001 - a value's own code runs here
        return json.dumps({"unanswerable": f"the returned value is not JSON: {message_of(raised)}"})
    if len(line) > ANSWER_BYTES_MAX:
        return json.dumps({"unanswerable": f"the returned value has {len(line)} bytes as JSON"})
    return line


def message_of(raised: BaseException) -> str:
    try:
        return str(raised)[:MESSAGE_CHARS_MAX]
    except BaseException:  # noqa: BLE001 - an exception's own code runs here
        return ""


main()

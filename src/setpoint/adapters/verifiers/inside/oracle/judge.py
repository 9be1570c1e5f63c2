"""Inside the judge's sandbox: load the sealed judge file and ask it for cases, for a domain, or for a verdict
on outcomes.

There is no workspace here; no code of the candidate is ever imported.
"""

import importlib.util
import json
import os
import random
import sys
from typing import Any


def main() -> None:
    asked = json.load(sys.stdin)
    sys.path.append(os.environ["SEALED"])
    place = os.path.join(os.environ["SEALED"], asked["judge"])
    spec = importlib.util.spec_from_file_location("setpoint_judge", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{asked['judge']} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["setpoint_judge"] = module
    spec.loader.exec_module(module)
    if asked["ask"] == "cases":
        answer = list(module.cases(random.Random(asked["seed"])))
    elif asked["ask"] == "domain":
        answer = [module.call, [list(values) for values in module.domain()]] if hasattr(module, "domain") else []
    else:
        answer = [judge(module, case, outcome) for case, outcome in asked["pairs"]]
    text = json.dumps(answer, allow_nan=False)  # before opening: a half-written answer must not exist
    with open(f"/out/{asked['ask']}.json", "w", encoding="utf-8") as file:
        file.write(text)


def judge(module: Any, case: Any, outcome: Any) -> Any:
    """None, or why the outcome is wrong. A judge that stumbles over an odd answer has not accepted it."""
    try:
        return module.judge(case, outcome)
    except Exception as raised:  # noqa: BLE001 - an odd answer must not end the judging of the others
        return f"the judge raised {type(raised).__name__}: {raised}"


main()

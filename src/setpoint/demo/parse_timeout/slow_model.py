"""A model in a program of its own, for the crash scene: the replies of script.yaml, its third test run a slow one.

Each time it is asked it writes one line to asked.log, so that anybody can count how often that was.
"""

import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
REPLIES = yaml.safe_load((HERE / "script.yaml").read_text(encoding="utf-8"))["proposals"]
SLOW_TURN = 3  # the third reply
SECONDS = 4  # long enough to be killed in

for line in sys.stdin:
    turn = json.loads(line)["context"]["turn"]
    with (HERE / "asked.log").open("a", encoding="utf-8") as log:
        log.write(f"turn {turn}\n")
    reply = REPLIES[turn - 1]
    if turn == SLOW_TURN:
        for call in reply["calls"]:
            if call["name"] == "shell_exec":
                call["arguments"]["command"] = f"sleep {SECONDS} && {call['arguments']['command']}"
    usage = {"input_tokens": 1200, "output_tokens": 150, "usd": "0.004"}
    print(json.dumps({**reply, "usage": usage}), flush=True)

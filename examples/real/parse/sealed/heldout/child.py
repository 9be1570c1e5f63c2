"""Parses texts with the candidate: JSON in, one JSON line per question out. Judges nothing."""

import json
import os
import sys

sys.path.append(os.getcwd())

import parse

for format, texts in json.load(sys.stdin):
    try:
        parser = parse.compile(format)
        seen = [list(parser.parse(text).fixed) for text in texts]
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises is the observation
        seen = {"raised": repr(error)}
    print(json.dumps(seen), flush=True)

"""Strips comments with the candidate: JSON in, one JSON line per question out. Judges nothing."""

import json
import os
import sys

sys.path.append(os.getcwd())

import sqlparse

for sql in json.load(sys.stdin):
    try:
        seen = sqlparse.format(sql, strip_comments=True)
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises is the observation
        seen = {"raised": repr(error)}
    print(json.dumps(seen), flush=True)

"""Runs histories on the candidate: JSON in, one JSON line per history out. Judges nothing."""

import json
import os
import sys

sys.path.append(os.getcwd())

import contextlib

import cachetools


def build(kind, maxsize, sized):
    class Store(getattr(cachetools, kind)):
        def __missing__(self, key):
            if key % 2 == 0:
                with contextlib.suppress(ValueError):
                    self[key] = key
            return key

    options = {"getsizeof": lambda value: value} if sized else {}
    if kind == "TTLCache":
        options["ttl"] = 3600
    return Store(maxsize, **options)


def play(kind, maxsize, sized, operations):
    cache = build(kind, maxsize, sized)
    steps = []
    for operation, key in operations:
        value = None
        if operation == "get":
            value = cache[key]
        elif operation == "set":
            with contextlib.suppress(ValueError):
                cache[key] = key
        elif operation == "del" and key in cache:
            del cache[key]
        elif operation == "pop" and len(cache):
            cache.popitem()
        steps.append({"value": value, "keys": list(cache), "len": len(cache), "currsize": cache.currsize})
    drained = []
    while len(cache):
        drained.append(cache.popitem())
    with contextlib.suppress(KeyError):
        drained.append(cache.popitem())
    return {"steps": steps, "drained": drained}


for case in json.load(sys.stdin):
    try:
        seen = play(*case)
    except Exception as error:  # noqa: BLE001 - whatever the candidate raises is the observation
        seen = {"raised": repr(error)}
    print(json.dumps(seen), flush=True)

"""Plays one history on the candidate and says what it saw. Runs in the candidate's sandbox and judges nothing."""

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


def act(cache, operation, key):
    """Carry out one operation; the value that was looked up, if it was a look-up."""
    if operation == "get":
        return cache[key]
    if operation == "set":
        with contextlib.suppress(ValueError):
            cache[key] = key
    elif operation == "del" and key in cache:
        del cache[key]
    elif operation == "pop" and len(cache):
        cache.popitem()
    return None


def play(kind, maxsize, sized, operations):
    cache = build(kind, maxsize, sized)
    steps = []
    for operation, key in operations:
        value = act(cache, operation, key)
        steps.append({"value": value, "keys": list(cache), "len": len(cache), "currsize": cache.currsize})
    drained = [cache.popitem() for _ in range(len(cache))]
    with contextlib.suppress(KeyError):
        drained.append(cache.popitem())  # an emptied cache must say that it is empty
    return {"steps": steps, "drained": drained}

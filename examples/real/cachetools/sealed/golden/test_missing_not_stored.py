"""A ``__missing__`` that does not store leaves no trace in the cache (cachetools issue 200)."""

import contextlib
import os
import sys

import pytest

sys.path.append(os.getcwd())  # last: the candidate must not shadow the standard library or pytest

import cachetools

NOT_STORED = ("absent", "missing", "unknown")


def store(kind, **options):
    """A cache whose ``__missing__`` stores only integers, and not those that are too large."""

    class Store(kind):
        def __missing__(self, key):
            if not isinstance(key, int):
                return f"no {key}"
            with contextlib.suppress(ValueError):
                self[key] = key
            return key

    return Store(**options)


def test_the_candidate_is_what_is_tested():
    assert os.path.realpath(cachetools.__file__).startswith(os.path.realpath(os.getcwd()) + os.sep)


def test_the_reported_example_fills_and_evicts():
    class M(cachetools.LRUCache):
        def __missing__(self, key):
            return 0 if key == (0, 0) else 1

    cache = M(maxsize=2)
    assert cache[0, 0] == 0
    for i in range(10):
        cache[i, i + 1] = i**2
    assert dict(cache.items()) == {(8, 9): 64, (9, 10): 81}


def test_a_truthy_value_that_is_not_stored_leaves_no_trace():
    cache = store(cachetools.LRUCache, maxsize=2)
    assert [cache[key] for key in NOT_STORED] == ["no absent", "no missing", "no unknown"]
    assert len(cache) == cache.currsize == 0
    for key in range(5):
        cache[key] = key
    assert sorted(cache) == [3, 4]


def test_a_value_too_large_to_store_is_returned_and_forgotten():
    cache = store(cachetools.LRUCache, maxsize=2, getsizeof=lambda value: value)
    assert [cache[1], cache[3], cache[2], cache[3], cache[1]] == [1, 3, 2, 3, 1]
    assert dict(cache.items()) == {1: 1}
    assert cache.popitem() == (1, 1)


def test_an_emptied_cache_says_so():
    cache = store(cachetools.LRUCache, maxsize=2)
    cache["absent"]
    with pytest.raises(KeyError, match="is empty"):
        cache.popitem()


def test_a_stored_value_still_counts_as_used():
    cache = store(cachetools.LRUCache, maxsize=2)
    assert (cache[1], cache[2], cache[1], cache["absent"]) == (1, 2, 1, "no absent")
    assert cache[3] == 3
    assert sorted(cache) == [1, 3], "2 was the least recently used"


def test_caches_that_never_had_the_fault_behave_as_before():
    for kind in (cachetools.Cache, cachetools.FIFOCache, cachetools.RRCache):
        cache = store(kind, maxsize=2)
        assert cache["absent"] == "no absent"
        for key in range(5):
            cache[key] = key
        assert len(cache) == 2

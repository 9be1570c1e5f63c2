"""Many rows in one statement: how many fit, and how they are handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

ROWS_A_STATEMENT = 64  # a prepared statement exists for each smaller number, too


def chunks(rows: Iterable[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, ROWS_A_STATEMENT)):
        yield chunk


def flat(rows: Sequence[tuple[object, ...]]) -> list[object]:
    return [value for row in rows for value in row]

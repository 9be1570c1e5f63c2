"""What the tests of the refund application share: a bank with orders, a store, and processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from setpoint import Runtime
from setpoint.adapters.effectors.http import HttpClient
from setpoint.app.runs import RunOutcome
from setpoint.demo.refund import refunds
from setpoint.demo.refund.bank import Bank
from setpoint.kernel.run_events import decode

CHILD = Path(__file__).with_name("refund_child.py")
DESK, DESK_CENTS = "A-1002", 31_900
BANKS = pytest.mark.parametrize("dedup", [True, False], ids=["a bank that remembers keys", "a naive bank"])


def many(count: int, customer: str = "customer:17", **more: Any) -> dict[str, dict[str, Any]]:
    """That many orders: O-1 costs 1001, O-2 1002 and so on."""
    same = {"customer": customer, "item": "cup", "status": "delivered", "days": 1, **more}
    return {f"O-{n}": {**same, "cents": 1000 + n} for n in range(1, count + 1)}


def store_of(place: Path) -> str:
    return f"sqlite:///{place}/refunds.db"


def desk(place: Path, bank: Bank, module: ModuleType = refunds, clock: Any = None, models: Any = None) -> Any:
    """A runtime for the application, and what it needs of the outside."""

    class Opened:
        async def __aenter__(self) -> Runtime:
            self.client = HttpClient(bank.url)
            services = {"bank": self.client}
            self.opened = Runtime.open(store_of(place), module.app, services=services, models=models, clock=clock)
            return await self.opened.__aenter__()

        async def __aexit__(self, *fault: Any) -> None:
            await self.opened.__aexit__(*fault)
            await self.client.close()

    return Opened()


async def ask(runtime: Runtime, order_id: str, customer: str = "customer:17", **more: Any) -> RunOutcome:
    return await runtime.run("refund", {"order_id": order_id, **more}, principal=customer)


def events(runtime: Runtime, run_id: str, *kinds: Any) -> list[Any]:
    found = [decode(stored.type, stored.data) for stored in runtime.log.read(run_id)]
    return [event for event in found if not kinds or isinstance(event, kinds)]


def paid(bank: Bank) -> dict[str, int]:
    """Cents by order, of refunds that stand. No order is refunded twice."""
    refunds = bank.ledger()["refunds"]
    twice = [order for order, count in Counter(row["order_id"] for row in refunds).items() if count > 1]
    assert twice == [], f"refunded more than once: {twice}"
    return {row["order_id"]: row["cents"] for row in refunds if not row["reversed"]}


class Children:
    """Processes that run the application and are killed on request."""

    def __init__(self, place: Path, bank: Bank) -> None:
        self._common = {"store": store_of(place), "bank": bank.url}
        self._child = subprocess.Popen(
            [sys.executable, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ.copy()
        )

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()
        self._child.wait(timeout=30)

    def send(self, **command: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({**self._common, **command}) + "\n")
        self._child.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        return json.loads(self._child.stdout.readline())

    def run(self, **command: Any) -> dict[str, Any]:
        self.send(**command)
        return self.answer()

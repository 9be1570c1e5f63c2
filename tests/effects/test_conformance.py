"""Capabilities over a real bank by HTTP, and over the fake world, keep the promises of ``setpoint.ports.effector``."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra 'http' is not installed")

from setpoint.adapters.effectors.http import HttpClient
from setpoint.app.capability import Capability, Context, capability
from setpoint.kernel.effects import DidNotHappen, EffectNotSent, ProbeAnswer
from setpoint.testing import FakeEffector
from setpoint.testing.conformance import EffectorSuite, OtherSide
from setpoint.testing.conformance.effector import Trouble

from .servers import BANK, bank_module


def refunds_module() -> ModuleType:
    """``examples/refunds/refunds.py`` as a module; the examples are no package."""
    name = "setpoint_example_refunds"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BANK.parent / "refunds.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class BankSide:
    MODES: Mapping[str, str] = {
        "declined": "decline",
        "not_sent": "rate-limited:1",
        "lost_reply": "commit-then-timeout",
        "lost_request": "drop",
    }

    def __init__(self, bank: Any, effector: Capability, arguments: dict[str, Any], table: str) -> None:
        self.bank, self.effector, self.arguments, self.table = bank, effector, arguments, table
        self.services = {"bank": HttpClient(bank.url)}

    def done(self) -> list[str]:
        return [row["key"] for row in self.bank.ledger()[self.table]]

    def undone(self) -> list[str]:
        return [row["key"] for row in self.bank.ledger()["reversals"]]

    def requests(self) -> int:
        return self.bank.ledger()["requests"]

    def befall(self, trouble: Trouble) -> None:
        if trouble == "no_look":
            self.bank.change({"mode": "outage"})
        else:
            self.bank.trouble(self.MODES[trouble])


class TestRefundOverHttp(EffectorSuite):
    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[OtherSide]:
        with bank_module().Bank(tmp_path / "bank.db") as bank:
            yield BankSide(bank, refunds_module().issue_refund, {"order_id": "A-1001", "cents": 100}, "refunds")


class TestLetterOverHttp(EffectorSuite):
    @pytest.fixture
    def other(self, tmp_path: Path) -> Iterator[OtherSide]:
        arguments = {"order_id": "A-1001", "to": "customer:17", "text": "your money is on its way"}
        with bank_module().Bank(tmp_path / "bank.db") as bank:
            yield BankSide(bank, refunds_module().send_letter, arguments, "letters")


# The fake world, which the tests of applications rest on.


async def find(ctx: Context) -> ProbeAnswer:
    return await ctx.services["world"].probe(ctx.key)


async def reverse(ctx: Context, result: dict[str, Any]) -> None:
    """It may be told twice, so it looks first."""
    if isinstance(await ctx.services["world"].probe(ctx.key), DidNotHappen):
        await ctx.services["world"].compensate(ctx.key, result)


def paying(**declared: Any) -> Capability:
    @capability(effect="compensable", name="pay", probe=find, compensate=reverse, **declared)
    async def pay(ctx: Context, order_id: str) -> dict[str, Any]:
        return await ctx.services["world"].perform(ctx.key, {"order_id": order_id})

    return pay


class FakeSide:
    TROUBLES: Mapping[str, Any] = {
        "declined": "permanent",
        "not_sent": "transient",
        "lost_reply": "timeout_after_effect",
        "lost_request": "drop",
    }
    arguments: Mapping[str, Any] = {"order_id": "A-1"}

    def __init__(self, dedups: bool) -> None:
        self.world = FakeEffector(dedups=dedups)
        self.effector = paying(dedups=dedups, key=(lambda a: f"pay:{a.order_id}") if dedups else None)
        self.services = {"world": self.world}

    def done(self) -> list[str]:
        return [deed.key for deed in self.world.ledger if deed.undoes is None]

    def undone(self) -> list[str]:
        return [deed.key for deed in self.world.ledger if deed.undoes is not None]

    def requests(self) -> int:
        return len(self.world.deliveries)

    def befall(self, trouble: Trouble) -> None:
        if trouble == "no_look":
            self.world.trouble_probe(EffectNotSent("no connection"))
        else:
            self.world.trouble(self.TROUBLES[trouble])


class TestFakeThatRemembers(EffectorSuite):
    @pytest.fixture
    def other(self) -> OtherSide:
        return FakeSide(dedups=True)


class TestNaiveFake(EffectorSuite):
    @pytest.fixture
    def other(self) -> OtherSide:
        return FakeSide(dedups=False)

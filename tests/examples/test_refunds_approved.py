"""A person says yes to one exact refund: across restarts and releases, for one amount, once."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.examples.refund_desk import (
    DESK,
    DESK_CENTS,
    Children,
    ask,
    desk,
    events,
    paid,
)

from setpoint import Runtime, UsageFault, approval_terms
from setpoint.adapters.approvers.signing import sign_decision
from setpoint.adapters.effectors.http import HttpClient
from setpoint.app.runs import RunOutcome
from setpoint.demo.refund import refunds
from setpoint.demo.refund.bank import ORDERS, Bank
from setpoint.kernel.errors import IllegalTransition
from setpoint.kernel.run_events import ApprovalRequested, ApprovalResolved, ApprovalSigned
from setpoint.kernel.ticket import SignedDecision, Ticket, read_ticket, signed_bytes
from setpoint.testing import FakeClock


def ticket_of(runtime: Runtime, outcome: RunOutcome) -> Ticket:
    """What people are asked now."""
    return read_ticket(runtime.log.payload(events(runtime, outcome.run_id, ApprovalRequested)[-1].ticket.ref))


def sign(runtime: Runtime, ticket: Ticket, name: str, key: Path, verdict: Any = "approve") -> SignedDecision:
    return sign_decision(ticket, verdict, name, runtime.clock.now_ms(), "", key)


async def decide(runtime: Runtime, outcome: RunOutcome, signed: SignedDecision) -> RunOutcome:
    runtime.runs.tell(outcome.run_id, "decide", signed_bytes(signed).decode(), by="a person")
    return await runtime.runs.wait(outcome.run_id)


def test_an_approval_survives_a_restart_and_pays_once(place: Path, people: dict[str, Path]) -> None:
    """D1 R128"""

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                assert (waiting.exit_code, waiting.record.state) == (13, "RUNNING")
                ticket = ticket_of(runtime, waiting)
                assert ticket.preview == "Refund 319.00 of 319.00 for order A-1002 (desk)"
            assert bank.requests == 0
            async with desk(place, bank) as runtime:
                done = await decide(runtime, waiting, sign(runtime, ticket, "anna", people["anna"]))
                assert done.exit_code == 0
                with pytest.raises(IllegalTransition):
                    await decide(runtime, waiting, sign(runtime, ticket, "anna", people["anna"]))
            assert paid(bank) == {DESK: DESK_CENTS}

    asyncio.run(scenario())


@pytest.mark.timeout(400)  # dozens of processes, each of which syncs
def test_a_kill_at_every_event_after_the_yes_still_pays_once(place: Path, people: dict[str, Path]) -> None:
    """D1 A1"""
    orders = {f"D-{n}": {**ORDERS[DESK], "cents": 20_000 + n} for n in range(1, 60)}

    async def say_yes(run_id: str, bank: Bank) -> None:
        async with desk(place, bank) as runtime:
            asked = RunOutcome(run_id, runtime.runs.record(run_id))
            signed = sign(runtime, ticket_of(runtime, asked), "anna", people["anna"])
            runtime.runs.tell(run_id, "decide", signed_bytes(signed).decode(), by="anna")

    with Bank(place / "bank.db", orders) as bank, Children(place, bank) as children:

        def until_approved(n: int) -> dict[str, Any]:
            assert children.run(order=f"D-{n}", run=f"rn-{n}")["code"] == 13
            asyncio.run(say_yes(f"rn-{n}", bank))
            return {"order": f"D-{n}", "run": f"rn-{n}"}

        whole = children.run(**until_approved(1))
        assert whole["code"] == 0
        marks = [("event", n) for n in range(1, whole["events"] + 1)]
        for n, kill in enumerate(marks, 2):
            same = until_approved(n)
            assert children.run(**same, kill=kill) == {"signal": 9}
            assert children.run(**same)["code"] == 0, kill
        assert paid(bank) == {f"D-{n}": 20_000 + n for n in range(1, len(marks) + 2)}


def a_new_release(version: int) -> ModuleType:
    """The application as it is deployed next: with another version of the workflow beside the old one, or instead."""
    spec = importlib.util.spec_from_file_location(f"refunds_{version}", refunds.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    (
        module.app.workflow(
            "refund", version=version, input=module.RefundInput, state=module.RefundState, output=module.summary
        )
        .capability("load-order", module.load_order)
        .step("check-policy", module.evaluate_refund_policy)
        .step("a-new-rule", lambda state: {"eligible": False, "why": "we refund nothing any more"})
    )
    return module


def test_a_run_that_waits_for_a_yes_goes_on_as_it_began_after_a_deploy(place: Path, people: dict[str, Path]) -> None:
    """N1"""

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                ticket = ticket_of(runtime, waiting)
            async with desk(place, bank, a_new_release(2)) as runtime:
                new = await ask(runtime, "A-1001")
                assert new.output["why_not"] == "we refund nothing any more"
                done = await decide(runtime, waiting, sign(runtime, ticket, "anna", people["anna"]))
                assert (done.exit_code, done.record.version) == (0, 1)
            assert paid(bank) == {DESK: DESK_CENTS}

    asyncio.run(scenario())


def test_a_release_without_the_old_version_leaves_its_runs_alone(place: Path, people: dict[str, Path]) -> None:
    """N1"""

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                ticket = ticket_of(runtime, waiting)
            without = a_new_release(2)
            without.app._workflows.pop(("refund", 1))
            without.app._agents.clear()  # it names the old version
            async with desk(place, bank, without) as runtime:
                with pytest.raises(UsageFault, match="pinned to version 1"):
                    await decide(runtime, waiting, sign(runtime, ticket, "anna", people["anna"]))
            async with desk(place, bank) as runtime:
                assert (await runtime.runs.wait(waiting.run_id)).exit_code == 0
            assert paid(bank) == {DESK: DESK_CENTS}

    asyncio.run(scenario())


def test_an_amount_that_changed_after_the_yes_voids_it_and_is_asked_anew(place: Path, people: dict[str, Path]) -> None:
    """D3 R126"""

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                old = ticket_of(runtime, waiting)
                bank.orders[DESK]["cents"] = 28_900
                again = await decide(runtime, waiting, sign(runtime, old, "anna", people["anna"]))
                assert (again.exit_code, bank.requests) == (13, 0)
                outcomes = [event.outcome for event in events(runtime, waiting.run_id, ApprovalResolved)]
                assert outcomes == ["granted", "void"]
                new = ticket_of(runtime, again)
                assert (old.arguments["cents"], new.arguments["cents"]) == (31_900, 28_900)
                # The old yes, once more, is no yes to the new amount.
                replayed = await decide(runtime, again, sign(runtime, old, "anna", people["anna"]))
                assert (replayed.exit_code, bank.requests) == (13, 0)
                done = await decide(runtime, again, sign(runtime, new, "anna", people["anna"]))
                assert done.exit_code == 0
            assert paid(bank) == {DESK: 28_900}

    asyncio.run(scenario())


def test_a_day_that_passes_voids_nothing(place: Path, people: dict[str, Path]) -> None:
    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                bank.orders[DESK]["days"] += 1
                done = await decide(
                    runtime, waiting, sign(runtime, ticket_of(runtime, waiting), "anna", people["anna"])
                )
                assert done.exit_code == 0

    asyncio.run(scenario())


def test_what_was_refunded_elsewhere_meanwhile_is_not_paid_in_spite_of_a_yes(
    place: Path, people: dict[str, Path]
) -> None:
    """D3"""

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                async with HttpClient(bank.url) as somebody:
                    await somebody.send("POST", "/refunds", key="by-hand", body={"order_id": DESK, "cents": 100})
                done = await decide(
                    runtime, waiting, sign(runtime, ticket_of(runtime, waiting), "anna", people["anna"])
                )
                assert (done.exit_code, done.record.reason) == (12, "PreconditionUnmet")
                assert "refunded already (100 cents)" in done.record.message
            assert paid(bank) == {DESK: 100}

    asyncio.run(scenario())


def test_silence_is_a_no(place: Path, people: dict[str, Path]) -> None:
    """D4 R127: and a yes that comes too late changes nothing."""

    async def scenario() -> None:
        clock = FakeClock()
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank, clock=clock) as runtime:
                waiting = await ask(runtime, DESK)
                late = sign(runtime, ticket_of(runtime, waiting), "anna", people["anna"])
                clock.advance(24 * 3_600_000)
                done = await decide(runtime, waiting, late)
                assert (done.exit_code, done.record.reason) == (12, "ApprovalExpired")
                assert runtime.runs.record(waiting.run_id).open_tickets == ()
                with pytest.raises(IllegalTransition):
                    await decide(runtime, waiting, late)
            assert bank.requests == 0

    asyncio.run(scenario())


def test_a_no_ends_it(place: Path, people: dict[str, Path]) -> None:
    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, DESK)
                no = sign(runtime, ticket_of(runtime, waiting), "anna", people["anna"], "deny")
                done = await decide(runtime, waiting, no)
                assert (done.exit_code, done.record.reason) == (12, "ApprovalDenied")
            assert bank.requests == 0

    asyncio.run(scenario())


def test_wrong_keys_altered_digests_and_replayed_signatures_are_refused(place: Path, people: dict[str, Path]) -> None:
    """R122 R124 R126 R129"""

    async def scenario() -> None:
        with Bank(place / "bank.db", {**ORDERS, "A-1004": {**ORDERS[DESK]}}) as bank:
            async with desk(place, bank) as runtime:
                other = await ask(runtime, "A-1004")
                waiting = await ask(runtime, DESK)
                ticket, elsewhere = ticket_of(runtime, waiting), ticket_of(runtime, other)
                good = sign(runtime, ticket, "anna", people["anna"])
                cheaper = Ticket(
                    **{field: getattr(ticket, field) for field in ticket.__struct_fields__ if field != "arguments"},
                    arguments={"order_id": DESK, "cents": 1},
                )
                elsewhere_again = sign(runtime, elsewhere, "anna", people["anna"])
                refused = {
                    "a stranger's key": sign(runtime, ticket, "stranger", people["stranger"]),
                    "a stranger with a good name": sign(runtime, ticket, "anna", people["stranger"]),
                    "a role that is not asked": sign(runtime, ticket, "omar", people["omar"]),
                    "another form of the ticket": sign(runtime, cheaper, "anna", people["anna"]),
                    "another verdict under the signature": SignedDecision(
                        decision=sign(runtime, ticket, "anna", people["anna"], "deny").decision,
                        scheme="ed25519",
                        key=good.key,
                        signature=good.signature,
                    ),
                    "the signature of another ticket": SignedDecision(
                        decision=good.decision,
                        scheme="ed25519",
                        key=good.key,
                        signature=elsewhere_again.signature,
                    ),
                    "a decision about another run": elsewhere_again,
                }
                for what, signed in refused.items():
                    still = await decide(runtime, waiting, signed)
                    assert (still.exit_code, bank.requests) == (13, 0), what
                said = events(runtime, waiting.run_id, ApprovalSigned)
                assert len(said) == len(refused) - 1  # that about another run finds no ticket here
                assert [one.counts for one in said] == [False] * len(said)
                assert all(one.why for one in said)
                assert (await decide(runtime, waiting, good)).exit_code == 0
            assert paid(bank) == {DESK: DESK_CENTS}

    asyncio.run(scenario())


def test_who_asks_does_not_approve(place: Path, people: dict[str, Path]) -> None:
    """R129"""

    async def scenario() -> None:
        with Bank(place / "bank.db", {"A-7": {**ORDERS[DESK], "customer": "anna"}}) as bank:
            async with desk(place, bank) as runtime:
                waiting = await ask(runtime, "A-7", "anna")
                own = sign(runtime, ticket_of(runtime, waiting), "anna", people["anna"])
                still = await decide(runtime, waiting, own)
                assert (still.exit_code, bank.requests) == (13, 0)
                (said,) = events(runtime, waiting.run_id, ApprovalSigned)
                assert "somebody else" in said.why

    asyncio.run(scenario())


def test_two_people_of_two_roles_must_agree_where_that_is_the_rule(place: Path, people: dict[str, Path]) -> None:
    """R129: the same person twice is one person."""
    module = a_new_release(2)
    module.app._workflows.pop(("refund", 2))
    (
        module.app.workflow(
            "refund", version=3, input=module.RefundInput, state=module.RefundState, output=module.summary
        )
        .capability("load-order", module.load_order)
        .step("check-policy", module.evaluate_refund_policy)
        .capability(
            "pay",
            module.issue_refund,
            approval=approval_terms(by=["ops", "finance"], quorum=2, each_role=True, expires="1h"),
        )
    )

    async def scenario() -> None:
        with Bank(place / "bank.db") as bank:
            async with desk(place, bank, module) as runtime:
                waiting = await ask(runtime, DESK)
                ticket = ticket_of(runtime, waiting)
                for _ in range(2):
                    still = await decide(runtime, waiting, sign(runtime, ticket, "anna", people["anna"]))
                    assert (still.exit_code, bank.requests) == (13, 0)
            async with desk(place, bank, module) as runtime:
                done = await decide(runtime, waiting, sign(runtime, ticket, "omar", people["omar"]))
                assert done.exit_code == 0
            assert paid(bank) == {DESK: DESK_CENTS}

    asyncio.run(scenario())

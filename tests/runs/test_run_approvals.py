"""People say yes to one exact action of a run, with a signature; everything else is a no."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.runs.flowkit import State, add, bench, done, fails, load_order, new_app, of_type, pay, played, why, world
from tests.runs.test_flow import flow

from setpoint import App, Context, capability
from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.approvers.signing import sign_with
from setpoint.adapters.stores.sqlite import SqliteLog
from setpoint.app.workflow import approval_terms
from setpoint.engine.runs.journal import RunJournal, read_run
from setpoint.engine.runs.program import Program
from setpoint.kernel.run_events import (
    ApprovalRequested,
    ApprovalResolved,
    ApprovalSigned,
    EffectQueued,
    LateResult,
    Migrated,
)
from setpoint.kernel.ticket import Ticket, Verdict, action_digest, decide, describe, read_ticket, signed_bytes
from setpoint.testing import AppKit, FakeClock

PEOPLE = {"anna": ["ops"], "bert": ["ops"], "carla": ["cfo"], "dora": ["guest"]}


def guarded(app: App | None = None, **terms: Any) -> App:
    """One payment that ops must agree to."""
    app = app or new_app()
    given = approval_terms(**{"by": ["ops"], "expires": "24h", **terms})
    flow(app).capability("load", load_order).capability("pay", pay, approval=given).step("after", add(1))
    return app


def kit_of(app: App, **options: Any) -> AppKit:
    return bench(app, approvers=PEOPLE, **options)


async def asked(app: App, **options: Any) -> tuple[AppKit, str, Ticket]:
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A", "cents": 700}, **options)
    assert outcome.exit_code == 13
    [ticket] = kit.tickets(outcome.run_id)
    assert world(kit).deliveries == []
    return kit, outcome.run_id, ticket


def say(kit: AppKit, run_id: str, ticket: Ticket, by: str, verdict: Verdict = "approve", **how: Any) -> None:
    """A decision about that very ticket, signed as told."""
    key = how.get("key", kit.keys.get(by))
    decision = decide(ticket, verdict, by, how.get("at_ms", kit.clock.now_ms()), how.get("reason", ""))
    wire = signed_bytes(sign_with(key, decision)).decode()
    kit.runs.tell(run_id, "decide", how.get("wire", wire), by=by)


def outcomes(kit: AppKit, run_id: str) -> list[str]:
    return [event.outcome for event in of_type(kit, run_id, ApprovalResolved)]


# Yes and no


@played
async def test_nothing_is_sent_before_a_yes_and_one_thing_after_it_across_a_restart() -> None:
    """R123, R124, D1"""
    kit, run_id, _ = await asked(guarded())
    kit.restart()
    assert (await kit.go_on(run_id)).exit_code == 13
    kit.approve(run_id, by="anna")
    kit.restart()
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "COMPLETED"
    assert world(kit).effects == {"refund:A:700": 1}
    [resolved] = of_type(kit, run_id, ApprovalResolved)
    assert (resolved.outcome, resolved.by) == ("granted", ["anna"])
    [queued] = of_type(kit, run_id, EffectQueued)
    assert queued.ticket_id == resolved.ticket_id
    for _ in range(3):
        kit.restart()
        await kit.go_on(run_id)
    assert world(kit).effects == {"refund:A:700": 1}
    assert len(of_type(kit, run_id, ApprovalRequested)) == 1


@played
async def test_a_no_ends_the_run_with_its_reason_and_without_the_effect() -> None:
    """R123"""
    kit, run_id, _ = await asked(guarded())
    kit.deny(run_id, by="anna", reason="too much")
    outcome = await kit.go_on(run_id)
    assert why(outcome) == ("FAILED", "ApprovalDenied", "w/pay was denied by anna: too much")
    assert outcome.exit_code == 12
    assert world(kit).deliveries == []


@played
async def test_a_no_is_recorded_when_it_comes_and_stands_when_its_author_is_trusted_no_longer() -> None:
    """R126"""
    kit, run_id, _ = await asked(guarded())
    kit.runs.tell(run_id, "pause", by="someone")
    await kit.go_on(run_id)
    kit.deny(run_id, by="anna")
    await kit.go_on(run_id)
    assert outcomes(kit, run_id) == ["denied"]
    without(kit, "anna")
    kit.runs.tell(run_id, "resume", by="someone")
    assert why(await kit.go_on(run_id))[:2] == ("FAILED", "ApprovalDenied")


def without(kit: AppKit, name: str) -> None:
    """A new process whose roster no longer has that person."""
    kit.restart()
    roster = kit.runs.approvers
    assert isinstance(roster, Roster)
    kit.runs.approvers = Roster([one for one in roster.approvers if one.name != name], kit.clock)


@played
async def test_silence_is_a_no() -> None:
    """R127, D4"""
    kit, run_id, _ = await asked(guarded())
    await kit.skip("23h")
    assert not kit.runs.record(run_id).is_terminal
    kit.restart()
    await kit.skip("1h")
    state, reason, message = why(await kit.go_on(run_id))
    assert (state, reason) == ("FAILED", "ApprovalExpired")
    assert message == "w/pay: APPROVAL_EXPIRED: nobody said enough in time, and silence is a no"
    assert kit.runs.record(run_id).open_tickets == ()
    assert world(kit).deliveries == []


@played
async def test_a_yes_that_comes_too_late_is_none() -> None:
    """R127, D4"""
    kit, run_id, ticket = await asked(guarded())
    kit.clock.advance(24 * 3_600_000)
    say(kit, run_id, ticket, "anna", at_ms=ticket.requested_at_ms + 1)
    assert why(await kit.go_on(run_id))[:2] == ("FAILED", "ApprovalExpired")
    [signed] = of_type(kit, run_id, ApprovalSigned)
    assert not signed.counts
    assert "expired" in signed.why


@played
async def test_a_yes_whose_time_is_up_before_the_call_is_made_is_no_yes_any_more() -> None:
    """R126, R127"""
    kit, run_id, _ = await asked(guarded())
    kit.approve(run_id, by="anna")
    kit.runs.tell(run_id, "pause", by="someone")
    await kit.go_on(run_id)
    kit.clock.advance(24 * 3_600_000)
    kit.runs.tell(run_id, "resume", by="someone")
    assert why(await kit.go_on(run_id))[:2] == ("FAILED", "ApprovalExpired")
    assert world(kit).deliveries == []


# What does not count


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"by": "dora"}, "dora is not one of ops"),
        ({"by": "anna", "key": Ed25519PrivateKey.generate()}, "no approver has the key"),
        ({"by": "zoe", "key": "anna"}, "the key is that of anna, the decision says zoe"),
        ({"by": "anna", "at_ms": 5}, "before the request"),
    ],
)
@played
async def test_a_yes_that_does_not_count_changes_nothing_and_is_on_record(how: dict[str, Any], words: str) -> None:
    """R124"""
    kit, run_id, ticket = await asked(guarded())
    given = {**how, "key": kit.keys["anna"]} if how.get("key") == "anna" else how
    say(kit, run_id, ticket, **given)
    assert (await kit.go_on(run_id)).exit_code == 13
    [signed] = of_type(kit, run_id, ApprovalSigned)
    assert (signed.counts, words in signed.why) == (False, True), signed.why
    assert world(kit).deliveries == []
    say(kit, run_id, ticket, "bert")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"


@played
async def test_an_altered_ticket_or_a_changed_signature_approves_nothing() -> None:
    """R124"""
    import msgspec

    kit, run_id, ticket = await asked(guarded())
    cheaper = msgspec.structs.replace(ticket, arguments={**ticket.arguments, "cents": 1})
    say(kit, run_id, cheaper, "anna")
    decision = decide(ticket, "deny", "anna", kit.clock.now_ms())
    signed = sign_with(kit.keys["anna"], decision)
    turned = msgspec.structs.replace(signed, decision=decide(ticket, "approve", "anna", kit.clock.now_ms()))
    say(kit, run_id, ticket, "anna", wire=signed_bytes(turned).decode())
    await kit.go_on(run_id)
    found = [event.why for event in of_type(kit, run_id, ApprovalSigned)]
    assert "the decision is about another form of" in found[0]
    assert "nothing was decided" in found[1]
    assert outcomes(kit, run_id) == []


@pytest.mark.parametrize("wire", ["", "yes", "{}", "[]", '{"decision": {}}', "\ud800", "null"])
@played
async def test_what_is_no_decision_at_all_is_dropped_on_record(wire: str) -> None:
    kit, run_id, _ = await asked(guarded())
    if wire == "\ud800":
        with pytest.raises(UnicodeEncodeError):
            kit.runs.tell(run_id, "decide", wire, by="x")
        return
    kit.runs.tell(run_id, "decide", wire, by="x")
    assert (await kit.go_on(run_id)).exit_code == 13
    [late] = of_type(kit, run_id, LateResult)
    assert late.reason.startswith("not a decision: ")


@played
async def test_a_signature_is_good_for_its_own_run_only() -> None:
    """R124"""
    kit, run_id, ticket = await asked(guarded())
    other = await kit.run("w", {"order_id": "A", "cents": 700})
    say(kit, other.run_id, ticket, "anna")
    outcome = await kit.go_on(other.run_id)
    assert outcome.exit_code == 13
    [late] = of_type(kit, other.run_id, LateResult)
    assert late.reason == f"no approval {ticket.ticket_id} is open in this run"
    say(kit, run_id, ticket, "anna")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"


@played
async def test_the_requester_is_no_approver_of_his_own_request() -> None:
    """R129"""
    kit = kit_of(guarded())
    outcome = await kit.run("w", {"order_id": "A"}, principal="anna")
    kit.approve(outcome.run_id, by="anna")
    assert (await kit.go_on(outcome.run_id)).exit_code == 13
    [signed] = of_type(kit, outcome.run_id, ApprovalSigned)
    assert signed.why == "anna asked for this; somebody else has to decide"
    kit.approve(outcome.run_id, by="bert")
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"


# Several people


@played
async def test_two_of_a_role_are_two_different_people() -> None:
    """R129"""
    kit, run_id, _ = await asked(guarded(quorum=2))
    kit.approve(run_id, by="anna")
    assert (await kit.go_on(run_id)).exit_code == 13
    kit.approve(run_id, by="anna")
    kit.restart()
    assert (await kit.go_on(run_id)).exit_code == 13
    kit.approve(run_id, by="bert")
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "COMPLETED"
    assert of_type(kit, run_id, ApprovalResolved)[0].by == ["anna", "bert"]


@played
async def test_each_role_must_be_among_them() -> None:
    """R129"""
    kit, run_id, _ = await asked(guarded(by=["ops", "cfo"], each_role=True))
    kit.approve(run_id, by="anna")
    kit.approve(run_id, by="bert")
    assert (await kit.go_on(run_id)).exit_code == 13
    kit.approve(run_id, by="carla")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"


@played
async def test_one_no_is_enough_whoever_said_yes() -> None:
    kit, run_id, _ = await asked(guarded(quorum=2))
    kit.approve(run_id, by="anna")
    kit.deny(run_id, by="bert")
    assert why(await kit.go_on(run_id))[:2] == ("FAILED", "ApprovalDenied")


# When it is needed


@pytest.mark.parametrize(("cents", "is_asked"), [(100, False), (900, True)])
@played
async def test_an_approval_may_depend_on_the_state(cents: int, is_asked: bool) -> None:
    """R128"""
    app = new_app()
    terms = approval_terms(by=["ops"])
    flow(app).capability("pay", pay, approval=terms, approval_when=lambda s: s.cents > 500)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A", "cents": cents})
    assert outcome.is_waiting == is_asked
    assert len(world(kit).ledger) == (not is_asked)


@played
async def test_an_approval_of_a_look_holds_it_back_too() -> None:
    """R123"""
    app, looked = new_app(), []

    @capability(effect="read")
    async def personal(ctx: Context, order_id: str) -> str:
        looked.append(order_id)
        return "secret"

    flow(app).capability("see", personal, into="note", approval=approval_terms(by=["ops"]))
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert (outcome.is_waiting, looked) == (True, [])
    kit.approve(outcome.run_id, by="anna")
    assert (await kit.go_on(outcome.run_id)).output["note"] == "secret"
    assert looked == ["A"]


# What is approved


@played
async def test_a_ticket_says_everything_that_a_person_must_know() -> None:
    """R125"""
    app = new_app()

    def is_open(state: State) -> bool:
        """The order is still open."""
        return True

    @capability(effect="compensable", key=lambda a: f"bonus:{a.order_id}", compensate=lambda ctx: None,
                dependency="bank", scopes=["refunds:write"])  # fmt: skip
    async def bonus(ctx: Context, order_id: str, cents: int) -> None:
        return None

    terms = approval_terms(by=["ops", "cfo"], quorum=2, expires="2h")
    flow(app).capability("load", load_order).capability(
        "bonus", bonus, require=is_open, approval=terms, preview=lambda s: f"{s.cents} cents for {s.order_id}"
    )
    kit = kit_of(app)
    outcome = await kit.run(
        "w", {"order_id": "A", "cents": 700}, principal="customer:17", scopes=("refunds:write",), run_id="rn-1"
    )
    [ticket] = kit.tickets(outcome.run_id)
    state = {**outcome.record.scopes[""].values}
    shown = dict(describe(ticket))
    assert {name: shown[name] for name in list(shown)[:10]} == {
        "Action": "bonus (compensable)",
        "Arguments": '{\n  "cents": 700,\n  "order_id": "A"\n}',
        "Target": "bank: bonus:A",
        "Authority": "customer:17, who holds refunds:write",
        "Preview": "700 cents for A",
        "Preconditions": "The order is still open.\nnothing was done before under the key bonus:A\n"
        "the requester holds refunds:write",
        "Requested by": "customer:17",
        "For": "w, node w/bonus, in rn-1",
        "Budget": "1 node done, 0 effects made",
        "Needs": "2 of ops or cfo",
    }
    assert ticket.expires_at_ms - ticket.requested_at_ms == 7_200_000
    [requested] = of_type(kit, outcome.run_id, ApprovalRequested)
    assert requested.action_digest == action_digest(
        "bonus", {"order_id": "A", "cents": 700}, ticket.base_digest, ticket.policy_digest
    )
    assert state["order"] == {"id": "A", "cents": 500}


@pytest.mark.parametrize("subject", [["a", "b"], "a text", 7, None, {"deep": 1.5}, State(order_id="X")])
@played
async def test_what_is_shown_may_be_any_value(subject: Any) -> None:
    """R125"""
    app = new_app()
    flow(app).approval("ok", by=["ops"], show=lambda s: subject, preview=lambda s: "look \ud800").capability("pay", pay)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    [ticket] = kit.tickets(outcome.run_id)
    assert isinstance(ticket.arguments, dict)
    assert (ticket.arguments.keys() == {"subject"}) == (not isinstance(subject, (dict, State)))
    assert ticket.preview == "look ?"
    kit.approve(outcome.run_id, by="anna")
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"


@played
async def test_an_answer_may_go_into_the_state_and_a_no_does_not_end_the_run() -> None:
    app = new_app()
    flow(app).approval("ok", by=["ops"], show=lambda s: {"n": 1}, into="answer").step(
        "note", lambda s: {"note": f"{s.answer.outcome} {s.answer.by} {s.answer.reason}"}
    )
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    kit.deny(outcome.run_id, by="anna", reason="no")
    assert (await kit.go_on(outcome.run_id)).output["note"] == "denied ['anna'] no"
    outcome = await kit.run("w", {"order_id": "A"})
    await kit.skip("24h")
    assert (await kit.go_on(outcome.run_id)).output["note"].startswith("expired [] APPROVAL_EXPIRED")


# An approval node that stands for a call


def ahead(between: Any = None, **terms: Any) -> App:
    app = new_app()
    w = flow(app).approval("ok", by=["ops"], of="pay", **terms)
    if between is not None:
        w.step("between", between)
    w.capability("pay", pay).step("after", add(1))
    return app


@played
async def test_a_yes_ahead_of_the_call_is_for_this_call_and_is_used_up_by_it() -> None:
    """R126"""
    kit, run_id, ticket = await asked(ahead())
    assert (ticket.capability, ticket.node, ticket.arguments) == ("pay", "w/ok", {"order_id": "A", "cents": 700})
    kit.approve(run_id, by="anna")
    kit.restart()
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "COMPLETED"
    [queued] = of_type(kit, run_id, EffectQueued)
    assert queued.ticket_id == ticket.ticket_id
    assert world(kit).effects == {"refund:A:700": 1}


@pytest.mark.parametrize("change", [lambda s: {"cents": 9_999}, lambda s: {"note": "elsewhere"}])
@played
async def test_a_change_of_arguments_or_state_after_the_yes_voids_it(change: Any) -> None:
    """R124, R126, D3"""
    kit, run_id, _ = await asked(ahead(change))
    kit.approve(run_id, by="anna")
    outcome = await kit.go_on(run_id)
    assert outcome.exit_code == 13
    assert outcomes(kit, run_id) == ["granted", "void"]
    assert world(kit).deliveries == []
    [ticket] = kit.tickets(run_id)
    assert ticket.node == "w/pay"
    kit.approve(run_id, by="anna")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"
    assert len(world(kit).ledger) == 1


@played
async def test_a_no_with_an_answer_keeps_the_call_forbidden_whatever_changes_afterwards() -> None:
    app = ahead(lambda s: {"note": f"was {s.answer.outcome}", "cents": 1}, into="answer")
    kit, run_id, _ = await asked(app)
    kit.deny(run_id, by="anna", reason="never")
    outcome = await kit.go_on(run_id)
    assert why(outcome) == ("FAILED", "ApprovalDenied", "w/pay was denied by anna: never")
    assert len(of_type(kit, run_id, ApprovalRequested)) == 1
    assert world(kit).deliveries == []


@played
async def test_the_answer_itself_is_no_change_of_what_was_approved() -> None:
    kit, run_id, _ = await asked(ahead(into="answer"))
    kit.approve(run_id, by="anna")
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "COMPLETED"
    assert outcome.output["answer"]["outcome"] == "granted"


@played
async def test_a_precondition_is_looked_at_again_after_the_yes() -> None:
    """R126"""
    app = new_app()
    w = flow(app).approval("ok", by=["ops"], of="pay", into="answer")
    w.capability("pay", pay, require=lambda s: s.answer is None or "the window has closed")
    kit, run_id, _ = await asked(app)
    kit.approve(run_id, by="anna")
    state, reason, message = why(await kit.go_on(run_id))
    assert (state, reason) == ("FAILED", "PreconditionUnmet")
    assert "the window has closed; nothing was sent" in message


@played
async def test_each_round_asks_for_its_own_approval() -> None:
    """B1"""
    app = new_app()
    body = app.fragment("body", state=State).step("next", lambda s: {"cents": s.cents + 1})
    body.approval("ok", by=["ops"], of="pay").capability("pay", pay)
    flow(app).repeat("r", body, until=lambda s: s.cents == 3, at_most=3)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    for number in range(3):
        [ticket] = kit.tickets(outcome.run_id)
        assert ticket.arguments["cents"] == number + 1
        kit.approve(outcome.run_id, by="anna")
        kit.restart()
        outcome = await kit.go_on(outcome.run_id)
    assert outcome.record.state == "COMPLETED"
    assert sorted(world(kit).effects.values()) == [1, 1, 1]
    tickets = [event.ticket_id for event in of_type(kit, outcome.run_id, EffectQueued)]
    assert len(set(tickets)) == 3
    assert "" not in tickets


# People and rules that change


@played
async def test_a_key_that_is_withdrawn_after_the_yes_voids_it_and_somebody_else_is_asked() -> None:
    """R124, R126"""
    app = new_app()
    flow(app).approval("ok", by=["ops"], of="pay").sleep("z", "1h").capability("pay", pay)
    kit, run_id, _ = await asked(app)
    kit.approve(run_id, by="anna")
    await kit.go_on(run_id)
    assert outcomes(kit, run_id) == ["granted"]
    kit.clock.advance(3_600_000)
    without(kit, "anna")
    outcome = await kit.runs.go_on(run_id)
    assert outcome.exit_code == 13
    assert outcomes(kit, run_id) == ["granted", "void"]
    assert of_type(kit, run_id, ApprovalResolved)[-1].reason == "a key that gave the approval is no longer trusted"
    assert world(kit).deliveries == []
    kit.approve(run_id, by="bert")
    outcome = await kit.runs.go_on(run_id)
    assert outcome.record.state == "COMPLETED"


@played
async def test_an_approval_survives_a_restart_and_the_deploy_of_a_new_version() -> None:
    """D1, N1, R059"""
    kit, run_id, _ = await asked(guarded())
    kit.approve(run_id, by="anna")
    newer = guarded()
    flow(newer, version=2).capability("load", load_order).step("new", add(100)).capability("pay", pay)
    kit.app = newer
    kit.restart()
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "COMPLETED"
    assert (outcome.record.version, outcome.output["count"]) == (1, 1)
    assert outcomes(kit, run_id) == ["granted"]
    assert world(kit).effects == {"refund:A:700": 1}
    assert "w/new" not in done(kit, run_id)
    second = await kit.run("w", {"order_id": "B"})
    assert (second.record.version, "w/new" in done(kit, second.run_id)) == (2, True)


@played
async def test_a_run_of_a_version_that_is_gone_is_left_alone_until_it_is_back() -> None:
    """N1"""
    kit, run_id, _ = await asked(guarded())
    kit.approve(run_id, by="anna")
    before = kit.log.head(run_id)
    old = kit.app
    kit.app = guarded(quorum=2)
    kit.restart()
    await kit.runs.work(until_idle=True)
    assert kit.log.head(run_id) == before
    kit.app = old
    kit.restart()
    await kit.runs.work(until_idle=True)
    assert kit.runs.record(run_id).state == "COMPLETED"


@played
async def test_rules_that_changed_after_the_yes_void_it_and_the_new_ones_are_asked_for() -> None:
    """R126, D3"""
    app = new_app()

    def version(number: int, quorum: int) -> Any:
        w = flow(app, version=number).approval("ok", by=["ops"], of="pay", quorum=quorum)
        return w.wait_for("go", timeout="9d").capability("pay", pay).program

    version(1, 1)
    newer = version(2, 2)
    kit = kit_of(app)
    given, state = app.workflows[0].program.begin({"order_id": "A"})
    run_id = await kit.runs.start(app.workflows[0].program, given, state)
    await kit.go_on(run_id)
    kit.approve(run_id, by="anna")
    await kit.go_on(run_id)
    assert outcomes(kit, run_id) == ["granted"]
    await migrated(kit, run_id, newer)
    kit.signal(run_id, "go")
    assert (await kit.go_on(run_id)).exit_code == 13
    assert outcomes(kit, run_id) == ["granted", "void"]
    assert [ticket.quorum for ticket in kit.tickets(run_id)] == [2]
    kit.approve(run_id, by="anna")
    assert (await kit.go_on(run_id)).exit_code == 13
    kit.approve(run_id, by="bert")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"
    assert len(world(kit).ledger) == 1


async def migrated(kit: AppKit, run_id: str, program: Program) -> None:
    """The run under another definition, as a migration writes it down."""
    lease = kit.log.claim(run_id, kit.runs.owner, 60_000)
    record, head = read_run(kit.log, run_id)
    journal = RunJournal(kit.log, kit.clock, lease, head, record)
    definition = program.definition
    document = journal.store(definition.document)
    await journal.write(
        Migrated(definition=document, definition_digest=definition.digest, version=definition.version, by="ops")
    )
    kit.log.release(lease)


@played
async def test_a_condition_that_comes_true_between_the_node_and_the_call_asks_at_the_call() -> None:
    """R126"""
    app = new_app()
    w = flow(app).approval("ok", by=["ops"], of="pay", when=lambda s: s.cents > 500)
    w.step("more", lambda s: {"cents": s.cents + 1_000}).capability("pay", pay)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A", "cents": 1})
    assert outcome.exit_code == 13
    assert [ticket.node for ticket in kit.tickets(outcome.run_id)] == ["w/pay"]
    assert world(kit).deliveries == []


@played
async def test_rounds_of_a_map_each_wait_for_their_own_yes() -> None:
    app = new_app()
    body = app.fragment("body", state=State).step("set", lambda s: {"cents": s.item})
    body.capability("pay", pay, approval=approval_terms(by=["ops"]))
    flow(app).map("m", lambda s: [1, 2, 3], body, item="item", at_once=3)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    tickets = {ticket.arguments["cents"]: ticket for ticket in kit.tickets(outcome.run_id)}
    assert set(tickets) == {1, 2, 3}
    say(kit, outcome.run_id, tickets[2], "anna")
    await kit.go_on(outcome.run_id)
    assert list(world(kit).effects) == ["refund:A:2"]
    kit.restart()
    kit.approve(outcome.run_id, by="anna")
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"
    assert sorted(world(kit).effects.values()) == [1, 1, 1]


# Waiting


@played
async def test_a_run_that_waits_for_people_takes_no_worker_and_leaves_the_rest_of_the_run_to_go_on() -> None:
    """L12, D4"""
    app = new_app()
    left = app.fragment("l", state=State).capability("pay", pay, approval=approval_terms(by=["ops"]))
    right = app.fragment("r", state=State).step("a", lambda s: {"note": "done"})
    flow(app).parallel("p", {"l": left, "r": right})
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert done(kit, outcome.run_id) == ["w/p/r/a"]
    await kit.runs.work(until_idle=True)
    assert kit.log.due("run", kit.clock.now_ms(), 10) == []
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    await kit.runs.close()
    assert all(task.done() for task in tasks)
    kit.approve(outcome.run_id, by="anna")
    await kit.runs.work(until_idle=True)
    assert kit.runs.record(outcome.run_id).state == "COMPLETED"


@played
async def test_a_step_that_raises_in_what_people_are_shown_pauses_the_run_and_asks_nobody() -> None:
    app = new_app()
    flow(app).approval("ok", by=["ops"], show=lambda s: s.order.cents)
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    assert why(outcome)[:2] == ("PAUSED", "NodeFailed")
    assert "the subject of w/ok raised AttributeError" in outcome.record.message
    assert of_type(kit, outcome.run_id, ApprovalRequested) == []


@played
async def test_what_was_done_before_a_no_is_taken_back() -> None:
    app = new_app()
    flow(app).capability("pay", pay).approval("ok", by=["ops"], show=lambda s: {}).step("no", fails("Never"))
    kit = kit_of(app)
    outcome = await kit.run("w", {"order_id": "A"})
    kit.deny(outcome.run_id, by="anna")
    assert why(await kit.go_on(outcome.run_id))[:2] == ("FAILED", "ApprovalDenied")
    assert (len(world(kit).ledger), world(kit).standing) == (2, {})


@played
async def test_the_ticket_in_the_store_is_the_one_people_signed(tmp_path: Path) -> None:
    """R124: over a real file, read back by another process's eyes."""
    clock = FakeClock()
    kit = kit_of(guarded(), clock=clock, log=SqliteLog(str(tmp_path / "runs.db"), clock.now_ms))
    outcome = await kit.run("w", {"order_id": "A"})
    kit.approve(outcome.run_id, by="anna")
    await kit.log.close()
    kit.restart(SqliteLog(str(tmp_path / "runs.db"), clock.now_ms))
    [requested] = of_type(kit, outcome.run_id, ApprovalRequested)
    ticket = read_ticket(kit.log.payload(requested.ticket.ref))
    assert (ticket.ticket_id, ticket.stream) == (requested.ticket_id, outcome.run_id)
    assert (await kit.go_on(outcome.run_id)).record.state == "COMPLETED"
    await kit.log.close()

"""What people may ask of a run in each of its states, what comes of it, and that every exit is the same door."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runs.flowkit import State, add, bench, done, mark, new_app, of_type, pay, played, send_letter, why, world
from tests.runs.test_flow import flow

import setpoint.engine.runs
from setpoint import Context, capability
from setpoint.app.workflow import approval_terms
from setpoint.kernel.errors import IllegalTransition, LogCorrupt
from setpoint.kernel.events import ControlApplied, ControlRequested, Finished, Ref
from setpoint.kernel.run_events import EffectQueued, RunPaused, RunResumed, RunStarted, UnwindStarted
from setpoint.kernel.run_record import RUN_LEGAL, RUN_TERMINAL, RunRecord, fold_run
from setpoint.testing import AppKit
from setpoint.testing.effector import Trouble

STATES = tuple(RUN_LEGAL)


def app_of(*, broken: bool = False) -> Any:
    """Pay, wait for a signal, end."""
    app = new_app()
    w = flow(app).capability("pay", pay).wait_for("go", timeout="9d")
    w.step("end", (lambda s: 1 / 0) if broken else add(1))
    return app


async def waiting(**options: Any) -> tuple[AppKit, str]:
    kit = bench(app_of(**options))
    outcome = await kit.run("w", {"order_id": "A"})
    assert outcome.record.state == "RUNNING"
    return kit, outcome.run_id


async def tell(kit: AppKit, run_id: str, *actions: str) -> RunRecord:
    for action in actions:
        kit.runs.tell(run_id, action, "why not", by="anna")
        kit.restart()
        await kit.runs.work(until_idle=True)
    return kit.runs.record(run_id)


def applied(kit: AppKit, run_id: str) -> list[str]:
    return [event.action for event in of_type(kit, run_id, ControlApplied)]


# In each state


@pytest.mark.parametrize(
    ("actions", "expected", "state"),
    [
        (["pause"], ["pause"], "PAUSED"),
        (["resume"], ["none"], "RUNNING"),
        (["cancel"], ["cancel"], "CANCELLED"),
        (["kill"], ["kill"], "CANCELLED"),
        (["pause", "pause"], ["pause", "none"], "PAUSED"),
        (["pause", "resume"], ["pause", "resume"], "RUNNING"),
        (["pause", "resume", "pause", "resume"], ["pause", "resume", "pause", "resume"], "RUNNING"),
        (["pause", "cancel"], ["pause", "cancel"], "CANCELLED"),
        (["pause", "kill"], ["pause", "kill"], "CANCELLED"),
        (["dance"], ["none"], "RUNNING"),
        (["interrupt", "pause"], ["none", "pause"], "PAUSED"),
    ],
)
@played
async def test_a_control_does_what_it_says_where_it_applies_and_is_on_record_where_not(
    actions: list[str], expected: list[str], state: str
) -> None:
    """R226"""
    kit, run_id = await waiting()
    record = await tell(kit, run_id, *actions)
    assert (applied(kit, run_id), record.state) == (expected, state)
    requested = of_type(kit, run_id, ControlRequested)
    assert [(event.action, event.by, event.argument) for event in requested] == [
        (a, "anna", "why not") for a in actions
    ]
    assert record.controls == ()
    standing = {"refund:A:0": 1} if "cancel" not in actions else {}
    assert world(kit).standing == standing


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "kill", "signal"])
@played
async def test_a_run_that_is_over_takes_no_word_any_more(action: str) -> None:
    """R226"""
    kit, run_id = await waiting()
    await tell(kit, run_id, "cancel")
    head = kit.log.head(run_id)
    with pytest.raises(IllegalTransition, match=f"run {run_id} is CANCELLED already; {action} does not apply"):
        kit.runs.tell(run_id, action, by="anna")
    await kit.runs.work(until_idle=True)
    assert kit.log.head(run_id) == head


@played
async def test_a_paused_run_does_nothing_by_itself_and_hears_what_is_said() -> None:
    """R226"""
    kit, run_id = await waiting()
    await tell(kit, run_id, "pause")
    kit.signal(run_id, "go")
    await kit.skip("100d")
    record = kit.runs.record(run_id)
    assert (record.state, done(kit, run_id)) == ("PAUSED", ["w/pay"])
    assert [received.signal for received in record.signals] == ["go"]
    record = await tell(kit, run_id, "resume")
    assert record.state == "COMPLETED"


@played
async def test_a_run_may_be_paused_before_it_begins() -> None:
    kit = bench(app_of())
    run_id = await kit.start("w", {"order_id": "A"})
    record = await tell(kit, run_id, "pause")
    assert (record.state, record.step) == ("PAUSED", 0)
    assert world(kit).deliveries == []


@played
async def test_a_control_takes_hold_between_two_nodes_and_never_inside_one() -> None:
    """R228"""
    app = new_app()
    flow(app).capability("pay", pay).step("b", add(1)).step("c", add(1))
    kit = bench(app)
    run_id = await kit.start("w", {"order_id": "A"})

    def asked(event: Any, record: RunRecord) -> None:
        if isinstance(event, EffectQueued):  # the call is on its way
            kit.runs.tell(run_id, "pause", by="anna")

    outcome = await kit.runs.go_on(run_id, observer=asked)
    assert outcome.record.state == "PAUSED"
    assert done(kit, run_id) == ["w/pay"]
    assert len(world(kit).ledger) == 1


@played
async def test_a_kill_goes_through_a_call_that_hangs() -> None:
    """R226, R228"""
    app, began = new_app(), asyncio.Event()

    @capability(effect="keyed", timeout="1h")
    async def hangs(ctx: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    flow(app).capability("pay", pay).capability("hangs", hangs)
    kit = bench(app)
    run_id = await kit.start("w", {"order_id": "A"})
    going = asyncio.create_task(kit.runs.go_on(run_id))
    await asyncio.wait_for(began.wait(), 10)
    kit.runs.tell(run_id, "kill", by="anna")
    outcome = await asyncio.wait_for(going, 10)
    assert why(outcome) == (
        "CANCELLED",
        "Killed",
        "killed by anna; nothing was taken back; still stands: w/pay; nobody knows what became of: w/hangs",
    )
    assert world(kit).standing == {"refund:A:0": 1}
    assert kit.log.holder(run_id) is None
    await kit.runs.close()


class Hasty:
    """A log in which a run is cut off while an append of it is on its way to the disk, where it arrives later."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.cut: Any = None
        self.writing: asyncio.Future[Any] | None = None
        self.durability = inner.durability

    async def append(self, *what: Any, **beside: Any) -> Any:
        if self.cut is None or not any(draft.type == "NodeCompleted" for draft in what[2]):
            return await self.inner.append(*what, **beside)
        cut, self.cut = self.cut, None
        self.writing = asyncio.ensure_future(self.late(*what, **beside))
        cut()
        return await asyncio.shield(self.writing)

    async def late(self, *what: Any, **beside: Any) -> Any:
        for _ in range(20):
            await asyncio.sleep(0)
        return await self.inner.append(*what, **beside)

    async def flush(self, stream: str) -> None:
        if self.writing is not None:
            await self.writing
        await self.inner.flush(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@played
async def test_a_kill_that_cuts_off_an_append_goes_on_from_what_the_log_holds() -> None:
    """R226"""
    app = new_app()
    flow(app).step("a", add(1)).step("b", add(1)).step("c", add(1))
    kit = bench(app)
    log = Hasty(kit.log)
    kit.restart(log)  # type: ignore[arg-type]
    run_id = await kit.start("w", {"order_id": "A"})

    def cut() -> None:
        kit.runs.tell(run_id, "kill", by="anna")
        kit.runs._look_after(run_id, kit.runs._active[run_id])  # the heartbeat, without its pause

    log.cut = cut
    outcome = await kit.runs.go_on(run_id)
    assert why(outcome)[:2] == ("CANCELLED", "Killed")
    assert done(kit, run_id) == ["w/a"]
    assert kit.runs.record(run_id).seq == kit.log.head(run_id).seq
    await kit.runs.close()


@played
async def test_a_pause_does_not_wait_for_the_end_of_a_wait() -> None:
    kit, run_id = await waiting()
    kit.runs.tell(run_id, "pause", by="anna")
    outcome = await kit.go_on(run_id)
    assert outcome.record.state == "PAUSED"
    assert outcome.exit_code == 13


# Taking back


@played
async def test_while_a_run_is_being_taken_back_only_a_kill_changes_its_way() -> None:
    """R226"""
    app = new_app()
    flow(app).capability("pay", pay).wait_for("go", timeout="9d")
    kit = bench(app)
    outcome = await kit.run("w", {"order_id": "A"})
    run_id = outcome.run_id
    world(kit).trouble(Trouble("transient", times=2))
    record = await tell(kit, run_id, "cancel", "pause", "resume", "cancel")
    assert (record.state, record.end) == ("UNWINDING", "CANCELLED")
    assert applied(kit, run_id) == ["cancel", "none", "none", "none"]
    for _ in range(2):
        await kit.skip("1h")
    assert kit.runs.record(run_id).state == "CANCELLED"
    assert world(kit).standing == {}


@played
async def test_a_kill_ends_a_run_that_is_being_taken_back() -> None:
    """R226"""
    kit, run_id = await waiting()
    world(kit).trouble(Trouble("transient", times=5))
    record = await tell(kit, run_id, "cancel", "kill")
    assert why(await kit.go_on(run_id)) == (
        "CANCELLED",
        "Killed",
        "killed by anna; nothing more is taken back; still stands: w/pay; nobody knows what became of: w/pay#undo",
    )
    assert record.finished_code == 11
    assert world(kit).standing == {"refund:A:0": 1}


@played
async def test_what_cannot_be_taken_back_waits_for_a_person_and_a_cancel_does_not_start_it_again() -> None:
    """R226"""
    kit, run_id = await waiting()
    world(kit).trouble("permanent")
    record = await tell(kit, run_id, "cancel")
    assert (record.state, record.reason, record.end) == ("PAUSED", "CompensationFailed", "CANCELLED")
    record = await tell(kit, run_id, "cancel")
    assert record.state == "PAUSED"
    assert applied(kit, run_id) == ["cancel", "none"]
    assert len(of_type(kit, run_id, UnwindStarted)) == 1
    record = await tell(kit, run_id, "kill")
    assert record.state == "CANCELLED"


@played
async def test_after_a_pivot_a_cancel_ends_the_run_and_takes_nothing_back() -> None:
    """R192"""
    app = new_app()
    flow(app).capability("pay", pay).capability(
        "letter", send_letter, into="letter", approval=approval_terms(by=["ops"])
    ).wait_for("go", timeout="9d")
    kit = bench(app, approvers={"anna": ["ops"]})
    outcome = await kit.run("w", {"order_id": "A"})
    kit.approve(outcome.run_id, by="anna")
    await kit.go_on(outcome.run_id)
    record = await tell(kit, outcome.run_id, "cancel")
    assert record.state == "CANCELLED"
    assert "w/letter stands" in record.message
    assert len(world(kit).ledger) == 2


@played
async def test_after_a_pivot_a_failure_pauses_the_run_instead_of_taking_it_back() -> None:
    """R192"""
    app, closed = new_app(), [True]
    w = flow(app).capability("letter", send_letter, into="letter", approval=approval_terms(by=["ops"]))
    w.branch("b", lambda s: "?" if closed[0] else "x", {"x": app.fragment("f", state=State).step("s", add(1))})
    kit = bench(app, approvers={"anna": ["ops"]})
    outcome = await kit.run("w", {"order_id": "A"})
    kit.approve(outcome.run_id, by="anna")
    outcome = await kit.go_on(outcome.run_id)
    assert why(outcome)[:2] == ("PAUSED", "AfterPivot")
    closed[0] = False
    record = await tell(kit, outcome.run_id, "resume")
    assert record.state == "COMPLETED"
    assert len(world(kit).ledger) == 1


# A new try


@played
async def test_a_retry_is_a_new_run_with_the_input_of_the_old_one_that_names_it_as_its_parent() -> None:
    """R225"""
    app, works = new_app(), [False]

    def unlucky(state: Any) -> Any:
        return {"note": "ok"} if works[0] else 1 / 0

    flow(app, on_bug="fail").capability("mark", mark).step("a", unlucky)
    kit = bench(app)
    old = await kit.run("w", {"order_id": "A", "cents": 3}, principal="customer:17", scopes=("x",), session="s")
    assert old.record.state == "FAILED"
    works[0] = True
    new_id = await kit.runs.retry(old.run_id)
    assert new_id != old.run_id
    [started] = of_type(kit, new_id, RunStarted)
    assert (started.parent, started.parent_node) == (old.run_id, "")
    assert (started.principal, started.scopes, started.session) == ("customer:17", ["x"], "s")
    new = await kit.go_on(new_id)
    assert (new.record.state, new.output["cents"]) == ("COMPLETED", 3)
    assert kit.runs.record(old.run_id).state == "FAILED"
    assert len(world(kit).standing) == 2  # a key of its own for each run


@played
async def test_what_is_not_over_is_resumed_and_not_retried() -> None:
    """R225"""
    kit, run_id = await waiting(broken=True)
    with pytest.raises(IllegalTransition, match="a retry is of a run that is over"):
        await kit.runs.retry(run_id)
    kit.signal(run_id, "go")
    assert (await kit.go_on(run_id)).record.state == "PAUSED"
    with pytest.raises(IllegalTransition, match="is PAUSED"):
        await kit.runs.retry(run_id)


# The table


def record_in(state: str) -> RunRecord:
    return RunRecord(run_id="rn-1", state=state, blocks={"w": 0})  # type: ignore[arg-type]


def enters(state: str, record: RunRecord) -> Any:
    """The event that leads to a state, for a record where the table allows it."""
    match state:
        case "RUNNING" if record.state == "NEW":
            return started()
        case "RUNNING":
            return RunResumed(by="x")
        case "PAUSED":
            return RunPaused(reason="Pause", message="")
        case "UNWINDING":
            return UnwindStarted(reason="r", message="", end="FAILED", code=11)
        case _:
            return Finished(state=state, reason="r", message="", code=0)


def started() -> RunStarted:
    ref = Ref("sha256:" + "0" * 64, 2)
    return RunStarted(workflow="w", version=1, definition=ref, definition_digest="d", input=ref, values={})


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
def test_every_pair_of_states_is_allowed_or_refused_as_the_table_says(before: str, after: str) -> None:
    """R226"""
    if after in ("NEW", "FINALIZING"):  # no event leads there: FINALIZING is passed on the way to an end
        assert after == "FINALIZING" or not any(after in legal for legal in RUN_LEGAL.values())
        return
    record = record_in(before)
    # An end is reached through FINALIZING, in one event.
    legal = RUN_LEGAL[before]  # type: ignore[index]
    through = after in legal or (after in RUN_TERMINAL and ("FINALIZING" in legal or before == "FINALIZING"))
    if before == "NEW" and after == "RUNNING":
        assert fold_run(record, started()).state == "RUNNING"
        return
    if through or before == after:
        if before in RUN_TERMINAL:
            return
        assert fold_run(record, enters(after, record)).state == after
    else:
        with pytest.raises((IllegalTransition, LogCorrupt)):
            fold_run(record, enters(after, record))


def test_a_run_that_was_being_taken_back_is_resumed_to_being_taken_back() -> None:
    record = fold_run(record_in("RUNNING"), UnwindStarted(reason="r", message="", end="FAILED", code=11))
    record = fold_run(fold_run(record, RunPaused(reason="CompensationFailed", message="")), RunResumed(by="x"))
    assert record.state == "UNWINDING"
    with pytest.raises(IllegalTransition):
        fold_run(record, RunStarted(**{field: getattr(started(), field) for field in started().__struct_fields__}))


def test_one_function_alone_ends_a_run() -> None:
    """Every exit goes through FINALIZING: nobody but ``_finish`` writes the event that ends a run."""
    where = []
    for path in Path(setpoint.engine.runs.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finished":
                    where.append(f"{path.name}:{function.name}")
    assert where == ["pursue.py:_finish"]

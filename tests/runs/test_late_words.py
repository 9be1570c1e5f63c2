"""What is said to a run late, twice, or on top of something else."""

from __future__ import annotations

import pytest

from setpoint.kernel.errors import IllegalTransition

from .flowkit import In, State, bench, new_app, played


def waiting(on_timeout: str = "continue"):
    app = new_app()
    flow = app.workflow("flow", input=In, state=State)
    flow.wait_for("word", timeout="1h", into="note", on_timeout=on_timeout)
    flow.wait_for("second", "word", timeout="1h", into="left", on_timeout="continue")
    return bench(app)


@pytest.mark.parametrize("late_ms", [-1, 0, 60_000])
@played
async def test_a_signal_counts_by_when_it_was_left_and_not_by_when_a_worker_looks(late_ms: int):
    kit = waiting()
    run_id = (await kit.run("flow", {"order_id": "A"})).run_id
    kit.clock.advance(3_600_000 + late_ms)
    kit.runs.tell(run_id, "signal", {"name": "word", "payload": "now"}, by="ann")
    kit.clock.advance(86_400_000)
    await kit.go_on(run_id)
    await kit.skip("2h")
    output = kit.runs.outcome(run_id).output
    assert (output["note"], output["left"]) == (("now", "") if late_ms < 0 else ("", "now"))


@played
async def test_a_signal_that_comes_too_late_does_not_save_the_run():
    kit = waiting("fail")
    run_id = (await kit.run("flow", {"order_id": "A"})).run_id
    kit.clock.advance(3_600_001)
    kit.runs.tell(run_id, "signal", {"name": "word", "payload": "now"}, by="ann")
    assert (await kit.go_on(run_id)).record.reason == "SignalTimeout"


@played
async def test_a_word_that_is_repeated_after_the_end_came_before():
    kit = waiting()
    run_id = (await kit.run("flow", {"order_id": "A"})).run_id
    assert kit.runs.tell(run_id, "signal", {"name": "word", "payload": "a"}, by="hook", key="k-1")
    assert kit.runs.tell(run_id, "signal", {"name": "word", "payload": "b"}, by="hook", key="k-2")
    assert (await kit.go_on(run_id)).record.state == "COMPLETED"
    assert not kit.runs.tell(run_id, "signal", {"name": "word", "payload": "a"}, by="hook", key="k-1")
    with pytest.raises(IllegalTransition, match="is COMPLETED already"):
        kit.runs.tell(run_id, "signal", {"name": "word", "payload": "a"}, by="hook", key="k-3")


@played
async def test_one_resume_goes_on_with_a_run_whose_pause_is_still_on_its_way():
    kit = waiting()
    run_id = (await kit.run("flow", {"order_id": "A"})).run_id
    assert not kit.runs.resume(run_id, by="ann")
    kit.runs.tell(run_id, "pause", by="ann")
    assert kit.runs.resume(run_id, by="ann") and not kit.runs.resume(run_id, by="ann")
    assert (await kit.go_on(run_id)).record.state == "RUNNING"
    kit.runs.tell(run_id, "pause", by="ann")
    assert (await kit.go_on(run_id)).record.state == "PAUSED"
    assert kit.runs.resume(run_id, by="ann") and not kit.runs.resume(run_id, by="ann")
    assert (await kit.go_on(run_id)).record.state == "RUNNING"

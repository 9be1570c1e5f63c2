"""A checkpoint only spares folding: a damaged one costs time, and a run or session is read all the same (R015)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from pydantic import BaseModel

from setpoint import App, Runtime
from setpoint.engine.runs import journal as runs_journal
from setpoint.engine.runs.journal import read_run
from setpoint.kernel import limits


class Number(BaseModel):
    n: int = 0


def counting() -> App:
    app = App("counting")
    workflow = app.workflow("count", input=Number, state=Number)
    for step in range(5):
        workflow.step(f"s{step}", lambda state: {"n": state.n + 1})
    return app


DAMAGES = {
    "no JSON": "UPDATE checkpoint SET record = X'00'",
    "another record": 'UPDATE checkpoint SET record = CAST(\'{"run_id": "rn-other"}\' AS BLOB)',
    "another event's hash": "UPDATE checkpoint SET hash = zeroblob(32)",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_is_read_whatever_became_of_its_checkpoint(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R015"""
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(limits, "RUN_CHECKPOINT_EVENTS", 2)
    assert runs_journal.limits is limits
    path = tmp_path / "runs.db"

    async def story() -> None:
        async with Runtime.open(f"sqlite:///{path}", counting()) as runtime:
            outcome = await runtime.run("count", {}, run_id="rn-1")
            assert runtime.log.checkpoint("rn-1") is not None
        with sqlite3.connect(path) as db:
            assert db.execute(DAMAGES[damage]).rowcount
        db.close()
        async with Runtime.open(f"sqlite:///{path}", counting()) as runtime:
            record, _ = read_run(runtime.log, "rn-1")
            assert record == outcome.record

    asyncio.run(story())

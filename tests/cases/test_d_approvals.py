"""D. Approvals after a restart, bound to one action, and a no when nobody answers. The whole runtime, real files."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.signatures import plain_key
from setpoint.adapters.approvers.signing import sign_with
from setpoint.app.keys import public_key
from setpoint.app.manifest import load_task
from setpoint.app.runtime import Runtime
from setpoint.certificate import read_approvers, verify
from setpoint.engine.control import Request, encode_request
from setpoint.kernel.errors import ClosureMissing, IllegalTransition, UsageFault
from setpoint.kernel.ticket import Ticket, decide, signed_bytes

from .conftest import CLAIM, Case, say, write

RULE: dict[str, Any] = {"when": "call.tool == 'file_write'", "by": ["ops"]}
POLICY = {"commit": "converged", "approve": [RULE]}
MEND = say(write("src/value", "5"), CLAIM)


def private(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def public(name: str) -> str:
    return plain_key(private(name).public_key().public_bytes_raw()).text


def roster(*people: tuple[str, str]) -> bytes:
    """JSON, which is YAML, too: the same file serves the installation and the standalone verifier."""
    entries = [{"name": name, "roles": [role], "key": public(name)} for name, role in people]
    return msgspec.json.encode({"approvers": entries})


@pytest.fixture(autouse=True)
def people(case: Case) -> Path:
    path = Path(os.environ["SETPOINT_HOME"]) / "approvers.yaml"
    path.write_bytes(roster(("anna", "ops"), ("sven", "sec")))
    path.chmod(0o600)
    return path


def ticket(case: Case) -> Ticket:
    with case.runtime() as runtime:
        [found] = runtime.open_tickets()
    return found.ticket


def sign(case: Case, verdict: Any = "approve", by: str = "anna", about: Ticket | None = None) -> None:
    about = about or ticket(case)
    signed = sign_with(private(by), decide(about, verdict, by, time.time_ns() // 1_000_000))
    with case.runtime() as runtime:
        runtime.decide(about.stream, signed)


def replayed(case: Case) -> Any:
    with case.runtime() as runtime:
        return runtime.replay(case.trajectory_id).record


def test_d1_approve_after_restart_executes_once_and_the_certificate_shows_by_whom(case: Case, people: Path) -> None:
    """D1, R123-R126: parked with exit 13 and no process; another process takes it up; anyone can recheck it."""
    parked = case.converge(MEND, policy=POLICY)
    assert parked.exit_code == 13 and parked.record.state == "AWAITING_APPROVAL"
    assert case.resume().exit_code == 13 and case.events("ToolIntent") == [], "taking it up decides nothing"
    asked = ticket(case)
    assert (asked.target, asked.preview.splitlines()[-1]) == ("src/value", "+5")
    sign(case)
    done = case.resume()
    assert done.exit_code == 0 and (case.project / "src/value").read_text() == "5"
    assert len(case.events("ToolIntent")) == 1 and len(case.prompts) == 1
    assert replayed(case).finished_code == 0
    with case.runtime() as runtime:
        assert done.record.certificate is not None
        bundle = runtime._runtime.log.payload(done.record.certificate.ref)
    keys = [public_key(Path(os.environ["SETPOINT_HOME"]) / "keys")]
    assert verify(bundle, keys).valid, "without a roster, the signatures hold by their own keys"
    named = verify(bundle, keys, approvers=read_approvers(people.read_bytes()))
    assert named.valid and next(c for c in named.checks if c.name == "approvers").outcome == "passed"
    for others in (roster(("sven", "ops")), roster(("anna", "sec"))):
        assert not verify(bundle, keys, approvers=read_approvers(others)).valid


def test_d1_a_worker_killed_while_it_waits_or_acts_leaves_one_effect(case: Case) -> None:
    """D1, A1: SIGKILL right after the decision came; the call is made once, in the end."""
    case.converge(MEND, policy=POLICY)
    sign(case)
    worker = subprocess.Popen(
        [sys.executable, "-m", "setpoint", "resume", case.trajectory_id],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not case.events("ApprovalResolved") and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait(10)
    done = case.resume()
    assert done.exit_code == 0 and (case.project / "src/value").read_text() == "5"
    assert len({event.key for event in case.events("ToolIntent")}) == 1
    assert done.record.calls_by_tool == {"file_write": 1}
    assert replayed(case).finished_code == 0


def test_d3_an_approval_is_of_one_action_on_one_state(case: Case) -> None:
    """D3: the user's tree changes after the yes: void, typed for the model, and asked anew with another digest."""
    case.converge(MEND, MEND, policy=POLICY)
    first = ticket(case)
    sign(case)
    case.files({"src/other": "mine"})
    again = case.resume()
    assert again.exit_code == 13
    [refused] = case.events("Refused")
    assert refused.reason == "APPROVAL_VOID" and "workspace" in refused.message and case.events("ToolIntent") == []
    second = ticket(case)
    assert second.ticket_id != first.ticket_id
    with pytest.raises(IllegalTransition, match="no approval"):
        sign(case, about=first)


def test_d4_nobody_answers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: after its time it is a no, it is in no list, and a late answer is told that it expired."""
    case.converge(MEND, say(CLAIM), policy={"approve": [RULE | {"expires": "1s"}]})
    with case.runtime() as runtime:
        record = runtime.record(case.trajectory_id)[0]
        assert record.ticket is not None
        asked = msgspec.json.decode(runtime._runtime.log.payload(record.ticket.ticket.ref), type=Ticket)
    while time.time_ns() // 1_000_000 < asked.expires_at_ms:
        time.sleep(0.05)
    with case.runtime() as runtime:
        assert runtime.open_tickets() == []
    with pytest.raises(IllegalTransition, match="expired at"):
        sign(case, about=asked)
    done = case.resume()
    assert done.exit_code == 11 and [event.reason for event in case.events("Refused")] == ["APPROVAL_EXPIRED"]
    assert "APPROVAL_EXPIRED" in case.prompt(1) and (case.project / "src/value").read_text() == "3"


def test_d4_recover_takes_up_what_was_decided_or_is_over_and_leaves_the_rest_waiting(case: Case) -> None:
    """D4, L12"""
    case.converge(MEND, policy=POLICY)

    async def recover() -> list[int]:
        async with case.runtime() as runtime:
            return [outcome.exit_code for outcome in await runtime.recover()]

    assert asyncio.run(recover()) == []
    sign(case)
    assert asyncio.run(recover()) == [0]


def test_a_decision_that_would_not_count_is_told_so_at_once_and_does_not_count_later(case: Case) -> None:
    """R124, R129: the wrong role is refused at the door; past the door it is on record and changes nothing."""
    case.converge(MEND, policy=POLICY)
    with pytest.raises(UsageFault, match="sven is not one of ops"):
        sign(case, by="sven")
    asked = ticket(case)
    signed = sign_with(private("sven"), decide(asked, "approve", "sven", time.time_ns() // 1_000_000))
    with case.runtime() as runtime:
        request = Request("decide", "sven", signed_bytes(signed).decode())
        runtime._runtime.log.deliver(case.trajectory_id, "rq-1", encode_request(request))
    assert case.resume().exit_code == 13
    [event] = case.events("ApprovalSigned")
    assert not event.counts and "sven is not one of ops" in event.why


@pytest.mark.parametrize(
    ("names", "rule", "why"),
    [
        ((), {}, "nobody in the roster has the role ops"),
        ((("sven", "sec"),), {}, "nobody in the roster has the role ops"),
        ((("anna", "ops"),), {"quorum": 2}, "2 people must approve as ops, and the roster has 1"),
        ((("anna", "ops"), ("ben", "ops")), {"by": ["ops", "sec"], "each_role": True, "quorum": 2}, "the role sec"),
    ],
)
def test_a_task_whose_gate_nobody_can_open_does_not_start(
    case: Case, people: Path, names: tuple[tuple[str, str], ...], rule: dict[str, Any], why: str
) -> None:
    """L10, R123: refused at acceptance with exit 12, nothing written; lint says the same."""
    people.unlink() if not names else people.write_bytes(roster(*names))
    with pytest.raises(ClosureMissing, match=why) as refused:
        case.converge(MEND, policy={"approve": [RULE | rule]})
    assert refused.value.exit_code == 12 and "approvers.yaml" in str(refused.value.hint)
    done = case.cli("lint", "-f", str(case.root / "task.yaml"), check=False)
    assert done.returncode == 12 and "no-approver" in done.stdout and why in done.stdout


def test_a_plan_asks_nobody_and_applying_it_comes_to_the_same(case: Case) -> None:
    """A call that needs people is refused in a plan; the log says why, and nothing waits."""
    case.script(MEND)
    task = load_task(str(case.task(policy=POLICY)))

    async def plan() -> tuple[Any, Any]:
        async with case.runtime() as runtime:
            made = await runtime.plan(task)
            return made, (await runtime.apply(made)).record

    made, applied = asyncio.run(plan())
    case.trajectory_id = made.trajectory_id
    assert [event.reason for event in case.events("Refused")] == ["APPROVAL_REQUIRED"]
    assert applied.is_terminal and (case.project / "src/value").read_text() == "3"
    with case.runtime() as runtime:
        assert runtime.open_tickets() == []


def test_a_roll_back_while_it_waits_closes_the_ticket_and_the_call_is_asked_anew(case: Case) -> None:
    """R126: what people were asked belongs to the work that was taken back."""
    case.converge(MEND, MEND, policy=POLICY)
    first = ticket(case)

    async def back() -> None:
        async with case.runtime() as runtime:
            await runtime.rollback(case.trajectory_id, 0, by="anna")

    asyncio.run(back())
    with pytest.raises(IllegalTransition, match="no approval"):
        sign(case, about=first)
    assert case.resume().exit_code == 13 and ticket(case).ticket_id != first.ticket_id
    sign(case)
    assert case.resume().exit_code == 0
    assert replayed(case).finished_code == 0


def test_undo_takes_back_what_was_approved_and_a_fork_asks_again(case: Case) -> None:
    """R124: a fork from before the approval proposes the call anew and needs a yes of its own."""
    case.converge(MEND, policy=POLICY)
    sign(case)
    assert case.resume().exit_code == 0

    async def back(runtime: Runtime) -> str:
        await runtime.undo(case.trajectory_id, by="anna")
        with pytest.raises(IllegalTransition, match="for one use"):
            await runtime.fork(case.trajectory_id, 1)
        return await runtime.fork(case.trajectory_id, 0)

    async def run() -> str:
        async with case.runtime() as runtime:
            return await back(runtime)

    case.trajectory_id = asyncio.run(run())
    assert (case.project / "src/value").read_text() == "3"
    assert case.resume().exit_code == 13 and ticket(case).stream == case.trajectory_id

"""kill -9 of a whole process at every event, between any two appends, at random instants (R049-R056, R173-R178; A1).

After each: `recover` in a fresh process ends in the same tree and the same certificate, no recorded model call is made
again, and no process, mount or temporary file is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.app.manifest import load_task
from setpoint.app.runtime import open_runtime
from setpoint.certificate.verify import content
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.testing.crash import Crash, CrashingLog

HELPER = Path(__file__).with_name("crash_child.py")
DEMO = Path(__file__).resolve().parents[2] / "src" / "setpoint" / "demo" / "parse_timeout"

TASK = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: light}
spec:
  goal: {text: src/value holds 5}
  environment:
    workspace: project
    toolchain: []
    sandbox: {limits: {wall: 20s, cpu: 20s, memory: 256Mi, pids: 32, output: 16Ki, disk: 64Mi}}
  actions:
    - {tool: shell_exec}
    - {tool: file_write, paths: ["src/**", "tests/**"]}
    - {tool: complete_task}
  observe: {max_tokens: 2000}
  done:
    - {id: unit, run: ": MARK; sh tests/check.sh", level: visible}
  invariants:
    - {id: tests-untouched, expr: "!changes.exists(c, c.path.startsWith('tests/'))"}
  budget: {turns: 12, tokens: 200000, usd: 2.0, wall: 5m}
  policy: {commit: converged}
  models: ["scripted:script.yaml"]
"""
SCRIPT = """\
usage: {input_tokens: 1000, output_tokens: 100, usd: 0.004}
proposals:
  - calls:
      - {name: file_write, arguments: {path: tests/check.sh, content: "true"}}
  - calls:
      - {name: shell_exec, arguments: {command: ": MARK; mkdir src/new; echo 1 > src/new/a; echo 5 > src/value"}}
      - {name: complete_task}
"""


@pytest.fixture(scope="module", autouse=True)
def _sandbox_works() -> None:
    try:
        sandbox = open_sandbox("namespaces", cache_dir=None)
    except IsolationUnavailable as reason:
        pytest.skip(f"no sandbox on this machine: {reason}")
    asyncio.run(sandbox.close())


class Bench:
    """One folder with project, manifest and state; ``mark`` is in the argv of everything an action or check starts."""

    def __init__(self, root: Path, source: Path | None = None) -> None:
        self.root = root
        self.mark = f"setpoint-sweep-{os.getpid()}-{random.randrange(10**9)}"
        self.temporary = root / "tmp"
        self.temporary.mkdir()
        self.home = root / "home"
        self._source = source or self._light()
        self.task = root / "task.yaml"
        environment = {**os.environ, "SETPOINT_HOME": str(self.home), "TMPDIR": str(self.temporary)}
        self._helper = subprocess.Popen(
            [sys.executable, str(HELPER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.known: list[str] = []
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.reset()

    def _light(self) -> Path:
        source = self.root / "source"
        (source / "project" / "src").mkdir(parents=True)
        (source / "project" / "tests").mkdir()
        (source / "task.yaml").write_text(TASK.replace("MARK", self.mark))
        (source / "script.yaml").write_text(SCRIPT.replace("MARK", self.mark))
        (source / "project" / "src" / "value").write_text("3")
        (source / "project" / "tests" / "check.sh").write_text('test "$(cat src/value)" = 5')
        return source

    def reset(self) -> None:
        """The project as it was at first; the state directory goes on."""
        for path in self._source.iterdir():
            target = self.root / path.name
            if path.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(path, target, symlinks=True)
            else:
                shutil.copy2(path, target)

    def say(self, **command: Any) -> dict[str, Any]:
        assert self._helper.stdin and self._helper.stdout
        self._helper.stdin.write(json.dumps(command) + "\n")
        self._helper.stdin.flush()
        answer = json.loads(self._helper.stdout.readline())
        assert "failed" not in answer, f"{command} ended with {answer}"
        return answer

    def start(self, kill: tuple[str, int] | None = None) -> dict[str, Any]:
        return self.say(do="start", task=str(self.task), kill=list(kill) if kill else None)

    def resume(self) -> dict[str, Any]:
        found = self.say(do="resume", known=self.known)
        if found.get("nothing"):  # it died before the task was accepted: as if nobody had asked
            found = self.start()
            self.say(do="resume", known=self.known)
        self.known.append(found["id"])
        return found

    def tree(self) -> dict[str, tuple[int, bytes]]:
        project = self.root / "project"
        return {
            str(path.relative_to(project)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
            for path in sorted(project.rglob("*"))
        }

    def close(self) -> None:
        assert self._helper.stdin
        self._helper.stdin.close()
        self._helper.wait(20)

    # What may be left

    def leftovers(self) -> list[str]:
        """Everything that a finished trajectory should have taken with it. Processes are given two seconds to go."""
        deadline = time.monotonic() + 2
        while (processes := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.root) in line]
        files = [str(path) for path in self.temporary.rglob("*")]
        scratch = [str(path) for path in (self.home / "cache" / "scratch").rglob("*")]
        places = self.home / "workspaces"
        transactions = [str(path) for path in places.glob("workspaces/*/transactions/*")]
        trash = [str(path) for path in places.glob("workspaces/*/trash/*")]
        shared = [name for name in set(os.listdir("/dev/shm")) - self.shared_memory if "setpoint" in name]
        return [*processes, *mounts, *files, *scratch, *transactions, *trash, *shared]

    def _processes(self) -> list[str]:
        found: list[str] = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) in (os.getpid(), self._helper.pid):
                continue
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if self.mark in line or str(self.root) in line:
                found.append(f"{pid}: {line}")
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def assert_like(undisturbed: dict[str, Any], found: dict[str, Any], at: object) -> None:
    for name in ("code", "reason", "state_digest", "certificate"):
        assert found[name] == undisturbed[name], f"{name} after a kill at {at}: {found}"
    cursors = [cursor for _, cursor in found["replies"]]
    assert cursors == [cursor for _, cursor in undisturbed["replies"]], f"replies after a kill at {at}: {found}"


def sweep(bench: Bench, kills: list[tuple[str, int]], undisturbed: dict[str, Any], tree: object) -> int:
    killed = 0
    for kill in kills:
        bench.reset()
        first = bench.start(kill)
        if "signal" in first:
            assert first["signal"] == 9
            killed += 1
        else:
            bench.known.append(first["id"])
        found = bench.resume() if "signal" in first else first
        assert_like(undisturbed, found, kill)
        assert bench.tree() == tree, f"after a kill at {kill}"
        assert bench.leftovers() == [], f"after a kill at {kill}"
    return killed


def undisturbed(bench: Bench) -> tuple[dict[str, Any], dict[str, tuple[int, bytes]]]:
    found = bench.start()
    bench.known.append(found["id"])
    assert found["code"] == 0 and found["certificate"], found
    assert bench.leftovers() == []
    return found, bench.tree()


@pytest.mark.timeout(600)
def test_kill_9_at_every_event_and_after_every_append_changes_nothing(bench: Bench) -> None:
    """R049, R051, R052, R056, R175, R176, R189; A1, A2, C5"""
    expected, tree = undisturbed(bench)
    assert expected["events"] >= 40 and expected["appends"] >= 7
    assert {"RolledBack", "SavepointKept", "CommitPlanned", "ClaimRejected"} - set(expected["types"]) <= {
        "ClaimRejected"
    }
    kills = [("emit", n + 1) for n in range(expected["events"])]
    kills += [("append", n + 1) for n in range(expected["appends"])]
    assert sweep(bench, kills, expected, tree) == len(kills)


@pytest.mark.timeout(300)
def test_kill_9_at_random_instants_changes_nothing(bench: Bench) -> None:
    """R049; the seed is printed with a failure."""
    seed = random.randrange(10**6)
    expected, tree = undisturbed(bench)
    chance = random.Random(seed)
    kills = [("after_ms", chance.randrange(1, 700)) for _ in range(8)]
    try:
        sweep(bench, kills, expected, tree)
    except AssertionError as fault:
        raise AssertionError(f"seed {seed}: {fault}") from fault


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_9_sweeps_the_demo_with_its_pytest_checks(tmp_path: Path) -> None:
    """Acceptance of the demo task: every event boundary and 200 random instants."""
    bench = Bench(tmp_path, DEMO)
    try:
        start = time.monotonic()
        expected, tree = undisturbed(bench)
        span_ms = int((time.monotonic() - start) * 1000)
        chance = random.Random(20260101)
        kills = [("emit", n + 1) for n in range(expected["events"])]
        kills += [("append", n + 1) for n in range(expected["appends"])]
        kills += [("after_ms", chance.randrange(1, span_ms)) for _ in range(200)]
        sweep(bench, kills, expected, tree)
    finally:
        bench.close()


@pytest.mark.parametrize("rung", ["overlay", "copy"])
def test_a_crash_between_any_two_appends_over_real_workspaces_changes_nothing(
    tmp_path: Path, rung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R051, R173: in one process, on overlays and on working copies; the sandbox and the files are real."""
    bench = Bench(tmp_path)
    bench.close()
    monkeypatch.setenv("SETPOINT_HOME", str(bench.home))

    async def told(events: int | None) -> dict[str, Any]:
        bench.reset()
        runtime = open_runtime()
        runtime.log = CrashingLog(runtime.log, events)  # type: ignore[assignment]
        async with runtime:
            try:
                sandbox = open_sandbox("namespaces", cache_dir=runtime.places.cache, rung=rung)  # type: ignore[arg-type]
            except IsolationUnavailable as reason:
                pytest.skip(str(reason))
            runtime.equipment._sandboxes["namespaces"] = sandbox
            known = {info.stream for info in runtime.log.streams()}
            try:
                outcome = await runtime.converge(load_task(str(bench.task)))
            except Crash:
                runtime.log.left = None  # type: ignore[attr-defined]
                mine = [info.stream for info in runtime.log.streams() if info.stream not in known]
                outcome = await runtime.resume(mine[0])
            certificate = outcome.record.certificate
            assert certificate is not None, outcome.record.finished_message
            ends: list[int] = []
            return {
                "certificate": content(runtime.log.payload(certificate.ref)),
                "digest": outcome.record.state_digest,
                "events": outcome.record.seq,
                "ends": ends,
                "tree": bench.tree(),
            }

    expected = asyncio.run(told(None))
    for events in range(2, expected["events"], 6):
        found = asyncio.run(told(events))
        assert (found["digest"], found["tree"]) == (expected["digest"], expected["tree"]), f"after {events} events"
        used = found["certificate"]["budget"]["used"]
        assert used["turns"] - expected["certificate"]["budget"]["used"]["turns"] in (0, 1), (
            "a torn append may cost a turn"
        )
        found["certificate"]["budget"]["used"] = expected["certificate"]["budget"]["used"]
        assert found["certificate"] == expected["certificate"], f"after {events} events"
    assert bench.leftovers() == []

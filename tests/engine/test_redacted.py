"""What the contract's patterns match reaches neither the log nor a prompt, whatever way it comes in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.stores.export import export_lines
from setpoint.app.manifest import load_task
from setpoint.app.runtime import Runtime
from setpoint.kernel.errors import IsolationUnavailable

TASK = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: secret}
spec:
  goal: {text: x}
  environment: {workspace: ws, toolchain: []}
  observe: {redact: ['API_KEY=\\S+']}
  actions: [{tool: shell_exec}, {tool: file_read}, {tool: file_edit}]
  done:
    - {id: exit, run: "cat conf.ini >&2; exit 1", disclose: full}
    - {id: tap, run: "echo 1..1; echo \\"not ok 1 - $(grep KEY conf.ini)\\"; exit 1", parse: tap, disclose: full}
  models: ["scripted:script.yaml"]
"""
SCRIPT = """\
proposals:
  - calls: [{name: shell_exec, arguments: {command: "cat conf.ini"}}, {name: file_read, arguments: {path: conf.ini}}]
  - calls: [{name: file_edit, arguments: {path: conf.ini, old_str: "port = 1", new_str: "port = 2"}}]
  - calls: [{name: shell_exec, arguments: {command: "ls"}}]
"""


def test_a_secret_of_the_workspace_reaches_neither_log_nor_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """R239: tool output, check failures, and the fresh copies of working files."""
    try:
        asyncio.run(open_sandbox("namespaces", cache_dir=None).close())
    except IsolationUnavailable as why:
        pytest.skip(str(why))
    monkeypatch.setenv("SETPOINT_HOME", str(tmp_path / "home"))
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "conf.ini").write_text("port = 1\nAPI_KEY=hunter2\n")
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "script.yaml").write_text(SCRIPT)

    async def run() -> tuple[str, str]:
        async with Runtime.open() as runtime:
            outcome = await runtime.converge(load_task(str(tmp_path / "task.yaml")))
            lines = [json.loads(line) for line in export_lines(runtime.log, outcome.trajectory_id)]
            refs = {
                part[2] for line in lines if line["type"] == "ContextBuilt" for part in line["data"].get("parts", [])
            }
            prompts = "".join(runtime.log.payload("sha256:" + ref).decode() for ref in refs)
            return json.dumps(lines), prompts

    log, prompts = asyncio.run(run())
    assert "hunter2" not in log and "hunter2" not in prompts
    assert "[redacted]" in log and "[redacted]" in prompts

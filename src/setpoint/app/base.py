"""The base a contract demands: a git commit, checked out clean (R238).

git runs inside the sandbox on a view of the base alone: a repository's own configuration can make git run programs.
"""

from __future__ import annotations

import shlex

from setpoint.kernel.contract import Task
from setpoint.kernel.errors import ConflictFault
from setpoint.ports.sandbox import Action, Limits, Sandbox
from setpoint.ports.workspace import Workspace

_SCRIPT = """\
git -c safe.directory=* rev-parse --verify --quiet HEAD^{commit} || exit 3
git -c safe.directory=* -c core.fsmonitor=false status --porcelain=v1 --untracked-files=all --ignore-submodules=none
"""


class BaseUnmet(ConflictFault):
    """The workspace is not the commit that the task requires (exit 15)."""


async def require_base(task: Task, workspace: Workspace, sandbox: Sandbox) -> None:
    """BaseUnmet unless the workspace is exactly the commit the task names. Nothing without one."""
    wanted = task.environment.base
    if wanted is None:
        return
    action = Action(
        ("/bin/sh", "-c", f"wanted={shlex.quote(wanted)}\n{_RESOLVE}{_SCRIPT}"),
        workspace.base_view(),
        Limits(wall_ms=60_000),
        env=(("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_OPTIONAL_LOCKS", "0")),
    )
    done = await sandbox.run(action)
    lines = done.stdout.kept.decode("utf-8", "replace").splitlines()
    if done.exit_code == 4:
        raise _refused(task, f"there is no commit {wanted} in it")
    if done.exit_code != 0 or len(lines) < 2:
        why = done.stderr.kept.decode("utf-8", "replace").strip() or "it is no git repository with a commit"
        raise _refused(task, why)
    resolved, head, *dirty = lines
    if resolved != head:
        raise _refused(task, f"its HEAD is {head[:12]}, not {resolved[:12]}")
    if dirty:
        raise _refused(task, f"it has uncommitted changes: {', '.join(line[3:] for line in dirty[:5])}")


_RESOLVE = 'git -c safe.directory=* rev-parse --verify --quiet "$wanted^{commit}" || exit 4\n'


def _refused(task: Task, why: str) -> BaseUnmet:
    return BaseUnmet(
        f"the task requires base {task.environment.base} of {task.environment.workspace}, but {why}",
        hint="Check out that commit and put other changes aside, or drop environment.base.",
    )

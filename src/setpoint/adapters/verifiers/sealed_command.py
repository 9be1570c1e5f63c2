"""Run a ``run`` check in a fresh sandbox and judge it.

The command sees the candidate through a throw-away view at ``/workspace``, its sealed files read-only at ``$SEALED``,
an empty ``$OUT`` for its report, no network. For a sealed pytest run Python and pytest are hardened so that nothing in
the candidate's tree (configuration, conftest, plugin, shadowing module, start-up file) is read by the judge: only code
that a test imports runs, and it runs in the judge's process. That last gap is what oracles close.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from setpoint.adapters.verifiers.parsers import (
    JSON_FORM,
    Report,
    ReportUnreadable,
    last_line,
    parse_json,
    parse_junit,
    parse_tap,
)
from setpoint.adapters.verifiers.verdicts import (
    PYTEST_MISSING_BECAUSE,
    Judgement,
    complaint,
    ended_badly,
    judge_exit,
    judge_pytest,
    judge_report,
)
from setpoint.kernel.contract import Environment, Level, Limits, ParserName, RunCheck
from setpoint.kernel.evidence import Counts
from setpoint.kernel.limits import CHECK_OUTPUT_BYTES_MAX
from setpoint.ports.sandbox import (
    SEALED_AT,
    WORKSPACE_AT,
    Action,
    BindView,
    Finished,
    Mount,
    OverlayView,
    Sandbox,
    View,
)

OUT_AT: Final = "/out"
INSIDE_AT: Final = "/setpoint"
INSIDE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")
HARNESS_VERSION: Final = 1
"""Raise it when the hardening or a verdict rule changes: evidence of the old harness then has another check digest."""
REPORT_NAMES: Final[Mapping[ParserName, str]] = {
    "pytest": "junit.xml",
    "junit": "junit.xml",
    "json": "report.json",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """A judged command. ``output_sha256`` covers both streams, whole, and the report."""

    judgement: Judgement
    output_sha256: str


def throw_away(view: View) -> View:
    """The same view with nowhere to write: a check never changes what it judges."""
    match view:
        case OverlayView():
            return replace(view, upper=None, work=None)
        case BindView():
            return replace(view, readonly=True)


def check_limits(limits: Limits, timeout_ms: int | None) -> Limits:
    """The environment's limits with the check's own time, keeping enough output for a report on stdout."""
    return replace(
        limits,
        wall_ms=limits.wall_ms if timeout_ms is None else timeout_ms,
        output_bytes=max(limits.output_bytes, CHECK_OUTPUT_BYTES_MAX),
    )


def command_action(
    check: RunCheck, level: Level, files: str | None, environment: Environment, view: View, report_name: str
) -> Action:
    """The sandboxed action of a ``run`` check."""
    env = dict(environment.env)
    mounts = list(environment.mounts)
    env["OUT"] = OUT_AT
    if files is not None:
        env["SEALED"] = SEALED_AT
        mounts.append(Mount(files, SEALED_AT))
    if level >= Level.SEALED:
        mounts.append(Mount(INSIDE, INSIDE_AT))
        env |= candidate_last(env)
    if check.parse == "pytest":
        options = f"--junitxml={OUT_AT}/{report_name}"
        if level >= Level.SEALED:
            options = _sealed_pytest_options(files)
            env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        env["PYTEST_ADDOPTS"] = f"{env.get('PYTEST_ADDOPTS', '')} {options}".strip()
    sealed_pytest = check.parse == "pytest" and level >= Level.SEALED
    return Action(
        argv=("sh", "-c", check.command),
        view=throw_away(view),
        limits=check_limits(environment.limits, check.timeout_ms),
        env=tuple(sorted(env.items())),
        mounts=tuple(mounts),
        toolchain=environment.toolchain,
        stdin=f"{report_name}\n".encode() if sealed_pytest else None,
        hidden=environment.hidden,
        out_at=OUT_AT,
    )


def candidate_last(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that make Python import our folder first, the candidate behind everything else, and from source.

    Folders the task itself put on PYTHONPATH go behind the workspace, since they may lie in it.
    """
    own = [os.path.join(WORKSPACE_AT, entry) for entry in env.get("PYTHONPATH", "").split(":") if entry]
    return {
        "PYTHONPATH": f"{INSIDE_AT}/python",
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SETPOINT_CANDIDATE_PATH": ":".join([WORKSPACE_AT, f"{WORKSPACE_AT}/src", *own]),
    }


def _sealed_pytest_options(files: str | None) -> str:
    own_ini = files is not None and os.path.isfile(os.path.join(files, "pytest.ini"))
    ini = f"{SEALED_AT}/pytest.ini" if own_ini else f"{INSIDE_AT}/python/pytest.ini"
    return (
        f"-p setpoint_seal -p no:cacheprovider -c {ini} --rootdir={SEALED_AT} --confcutdir={SEALED_AT}"
        " --import-mode=importlib"
    )


async def run_command(
    check: RunCheck,
    level: Level,
    files: str | None,
    environment: Environment,
    view: View,
    sandbox: Sandbox,
    baseline: Counts | None,
) -> Ran:
    """Run and judge. Raises SandboxFault when no sandbox can be made."""
    name = REPORT_NAMES.get(check.parse, "")
    if check.parse == "pytest" and level >= Level.SEALED:
        name = f"report-{secrets.token_hex(16)}.xml"
    action = command_action(check, level, files, environment, view, name)
    finished = await sandbox.run(action)
    judgement = judge_command(check.parse, name, finished, action.limits, baseline)
    return Ran(judgement, output_digest(finished, finished.files.get(name, b"")))


def output_digest(finished: Finished, report: bytes) -> str:
    """SHA-256, in hexadecimal, over everything a judgement rests on."""
    parts = [finished.stdout.sha256, finished.stderr.sha256, hashlib.sha256(report).hexdigest()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def judge_command(
    parse: ParserName, report_name: str, finished: Finished, limits: Limits, baseline: Counts | None
) -> Judgement:
    """Pure: the verdict of a finished command under one parser."""
    if parse == "exit":
        return judge_exit(finished, limits)
    try:
        report = _read_report(parse, report_name, finished)
    except ReportUnreadable as fault:
        return Judgement.missing(_without_report(parse, str(fault), finished, limits))
    judge = judge_pytest if parse == "pytest" else judge_report
    return judge(finished, limits, report, baseline)


def _read_report(parse: ParserName, report_name: str, finished: Finished) -> Report:
    if parse == "tap":
        if finished.stdout.truncated:
            raise ReportUnreadable(f"the TAP output of {finished.stdout.total_bytes} bytes was cut")
        return parse_tap(finished.stdout.kept)
    data = finished.files.get(report_name)
    if parse == "json":
        line = last_line(finished.stdout.kept) if data is None else data
        if not line:
            raise ReportUnreadable(
                f"no JSON report was left, at $OUT/{report_name} or as the last line of standard output; "
                f"its form is {JSON_FORM}"
            )
        return parse_json(line)
    if data is None and parse == "pytest":
        raise ReportUnreadable("no junit report was left, so the run ended before it could be written")
    if data is None:
        raise ReportUnreadable(f"no junit report was left at $OUT/{report_name}, where the command has to write it")
    return parse_junit(data)


def _without_report(parse: ParserName, unreadable: str, finished: Finished, limits: Limits) -> str:
    """Say first what ended the process: a lost report is usually the consequence."""
    if bad := ended_badly(finished, limits):
        return bad
    code = finished.exit_code or 0
    if parse == "pytest" and (because := PYTEST_MISSING_BECAUSE.get(code)):
        return f"{because} (exit code {code}): {complaint(finished)}"
    return f"{unreadable} (exit code {code}): {complaint(finished)}"

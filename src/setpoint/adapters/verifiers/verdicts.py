"""From what a check's process did, and what its report says, to a verdict. Pure, and the only place that decides.

The rule in one sentence: a pass needs an ordinary end with exit code 0 *and* a readable report in which at least one
test ran, none failed, and none was lost against the baseline. What did not end in order is "missing"; what ended in
order and disagrees is "fail". Text a tool prints for people has no say.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from setpoint.adapters.verifiers.parsers import Report, bounded, clip
from setpoint.kernel.contract import Limits
from setpoint.kernel.diagnostics import diagnose
from setpoint.kernel.evidence import Counts, Failure, Verdict
from setpoint.ports.sandbox import Finished

_ENDED_EARLY: Final[Mapping[str, str]] = {
    "wall": "did not finish within {wall} ms",
    "cpu": "used more than {cpu} ms of cpu",
    "memory": "used more than {memory} bytes of memory",
    "output": "wrote more than {output} bytes",
    "cancelled": "was cancelled",
    "killed": "was killed",
    "start": "could not be started",
}
SHELL_NOT_FOUND: Final = 127
SHELL_NOT_EXECUTABLE: Final = 126
PYTEST_TESTS_FAILED: Final = 1
PYTEST_INTERRUPTED: Final = 2
PYTEST_MISSING_BECAUSE: Final[Mapping[int, str]] = {
    3: "pytest reports an internal error",
    4: "pytest was called wrongly",
    5: "pytest collected no test",
}
REASON_CHARS_MAX: Final = 400
FAILURE_TAIL_CHARS: Final = 500
"""The end of a tool's output is where compilers and scripts put what matters."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its grounds, before it is bound to a state. ``distance`` is 0 exactly when passed."""

    verdict: Verdict
    reason: str = ""
    distance: int = 0
    counts: Counts | None = None
    failures: tuple[Failure, ...] = ()

    @classmethod
    def passing(cls, counts: Counts | None = None) -> Judgement:
        return cls("pass", counts=counts)

    @classmethod
    def missing(cls, reason: str, counts: Counts | None = None) -> Judgement:
        return cls("missing", clip(reason, REASON_CHARS_MAX), 1, counts)

    @classmethod
    def failing(
        cls, reason: str, distance: int = 1, counts: Counts | None = None, failures: tuple[Failure, ...] = ()
    ) -> Judgement:
        return cls("fail", clip(reason, REASON_CHARS_MAX), max(1, distance), counts, failures)


def ended_badly(finished: Finished, limits: Limits) -> str:
    """Why the process proves nothing, or "" when it ended in order. A shell reports a signal as 128 + n."""
    if finished.reason:
        form = _ENDED_EARLY.get(finished.reason, f"was ended ({finished.reason})")
        return "the check " + form.format(
            wall=limits.wall_ms, cpu=limits.cpu_ms, memory=limits.memory_bytes, output=limits.output_kill_bytes
        )
    if finished.signal is not None:
        return f"the check crashed with {_signal_name(finished.signal)}"
    code = finished.exit_code
    if code is None:
        return "the check ended without an exit code"
    if code == SHELL_NOT_FOUND:
        return f"the check's command was not found: {complaint(finished)}"
    if code == SHELL_NOT_EXECUTABLE:
        return f"the check's command cannot be executed: {complaint(finished)}"
    if _signal_name(code - 128):
        return f"the check crashed with {_signal_name(code - 128)}"
    return ""


def complaint(finished: Finished) -> str:
    """The last line the process wrote, for people: it decides nothing."""
    for stream in (finished.stderr, finished.stdout):
        lines = [line for line in stream.kept.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            return clip(lines[-1], 200)
    return "it wrote nothing"


def judge_exit(finished: Finished, limits: Limits) -> Judgement:
    """Exit code 0 is a pass. What the output complains of is recorded as failing items, and decides nothing.

    Without a recognised diagnostic the failing item is the command itself, its message the end of its output.
    """
    if bad := ended_badly(finished, limits):
        return Judgement.missing(bad)
    if finished.exit_code == 0:
        return Judgement.passing()
    text = (finished.stdout.kept + b"\n" + finished.stderr.kept).decode("utf-8", "replace").strip()
    failures = [Failure(f"{d.path}:{d.line}" if d.line else d.path, f"{d.code}: {d.message}") for d in diagnose(text)]
    if not failures:
        failures = [Failure("exit", clip(text[-FAILURE_TAIL_CHARS:]))]
    return Judgement.failing(f"exit code {finished.exit_code}", failures=bounded(failures))


def judge_report(finished: Finished, limits: Limits, report: Report, baseline: Counts | None) -> Judgement:
    """Judge a command that ended in order and left a readable report (junit, tap, json)."""
    if bad := ended_badly(finished, limits):
        return Judgement.missing(bad, report.counts)
    return _weigh(finished, report, baseline)


def judge_pytest(finished: Finished, limits: Limits, report: Report, baseline: Counts | None) -> Judgement:
    """Like ``judge_report``, knowing what pytest's exit codes mean.

    A module of the candidate that cannot be imported interrupts collection (code 2) with errors in the report: that
    is the candidate's failure. Every other disorder is missing evidence.
    """
    if bad := ended_badly(finished, limits):
        return Judgement.missing(bad, report.counts)
    code = finished.exit_code or 0
    if because := PYTEST_MISSING_BECAUSE.get(code):
        had = f" and the baseline had {baseline.collected}" if baseline and code == 5 else ""
        return Judgement.missing(f"{because}{had} (exit code {code}): {complaint(finished)}", report.counts)
    if code == PYTEST_INTERRUPTED and report.counts.errors == 0:
        return Judgement.missing(f"pytest was interrupted: {complaint(finished)}", report.counts)
    return _weigh(finished, report, baseline)


def _weigh(finished: Finished, report: Report, baseline: Counts | None) -> Judgement:
    counts, code = report.counts, finished.exit_code
    lost = _lost(report, baseline)
    if report.failing or lost:
        found = [f"{report.failing} of {max(counts.collected, report.failing)} failed"] if report.failing else []
        if lost:
            found.append(lost[0])
        if code == 0:
            found.append("the exit code said 0")
        return Judgement.failing("; ".join(found), report.failing + (lost[1] if lost else 0), counts, report.failures)
    if code != 0:
        return Judgement.failing(f"exit code {code} although the report names no failure", 1, counts)
    if counts.collected == 0:
        return Judgement.missing("no test was collected", counts)
    if counts.passed == 0:
        return Judgement.missing(f"no test ran: all {counts.collected} were skipped", counts)
    return Judgement.passing(counts)


def _lost(report: Report, baseline: Counts | None) -> tuple[str, int] | None:
    """Tests that the baseline had and this run has not: not collected, or collected and skipped.

    A baseline of which only ``collected`` is known (the outcomes do not add up to it) says nothing about skips.
    """
    if baseline is None:
        return None
    counts = report.counts
    if counts.collected < baseline.collected:
        missing = baseline.collected - counts.collected
        return f"collected {counts.collected} of {baseline.collected} tests: tests were lost", missing
    ran_before = baseline.collected - baseline.skipped
    outcomes_known = baseline.passed + baseline.failed + baseline.errors + baseline.skipped >= baseline.collected
    if outcomes_known and report.ran < ran_before:
        return f"ran {report.ran} of {ran_before} tests: tests are skipped that ran before", ran_before - report.ran
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""

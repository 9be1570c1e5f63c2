"""Judge by an out-of-process oracle: the candidate computes, the judge compares, and they never share a process.

A judge file::

    def cases(rng):                                      # a random.Random, seeded by the state that is judged
        for _ in range(200):
            text = f"{rng.uniform(-9, 9):.3f}"
            yield {"call": "config:parse_timeout", "args": [text], "expect": max(float(text), 0) or 5.0}

    def judge(case, outcome):                            # {"value": ...} or {"raised": "ValueError", "message": "..."}
        return None if outcome == {"value": case["expect"]} else f"{case['args']} gave {outcome}"

``call``, ``args``, ``kwargs`` and ``fresh`` (an interpreter of its own) travel to the candidate; other keys stay with
the judge, and ``name`` names the case in a failure. Values are JSON: a tuple comes back as a list. The number of cases
must not fall below the baseline's, as for every check that counts.

Three sandboxes a check. The sealed judge file names calls (``cases(rng)``); a sandbox with the candidate and without
any sealed file executes them and returns plain JSON; the judge file compares (``judge(case, outcome)``) in a sandbox
without the candidate. Code of the candidate can therefore choose its answers, which is all it is there for, and nothing
else: it can neither reach the comparison nor see what is expected.

The random inputs are derived from the fingerprint of the state: the same state is always asked the same, so a replay
agrees, and an answer table learned from one state is asked something else in the next.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import dataclass
from typing import Any, Final, cast

from setpoint.adapters.verifiers.parsers import bounded, clip
from setpoint.adapters.verifiers.sealed_command import (
    INSIDE,
    INSIDE_AT,
    OUT_AT,
    candidate_last,
    check_limits,
    output_digest,
    throw_away,
)
from setpoint.adapters.verifiers.verdicts import Judgement, complaint, ended_badly
from setpoint.kernel.contract import Environment, Limits, OracleCheck
from setpoint.kernel.evidence import Counts, Failure
from setpoint.ports.sandbox import SEALED_AT, Action, Finished, Mount, Sandbox
from setpoint.ports.verifier import Candidate

CASES_MAX: Final = 2_000
"""Each case costs a call and a line; a property needs hundreds of inputs, not a million."""
ANSWER_BYTES_MAX: Final = 8 << 20
CASE_KEYS: Final = frozenset({"call", "args", "kwargs", "fresh"})
"""What of a case the candidate's sandbox is told. Further keys (an expected value, a name) stay with the judge."""


class NoEvidence(Exception):
    """A step gave nothing to go on; the message is the reason of a missing verdict."""


@dataclass(slots=True)
class Steps:
    """Runs the steps of one check and collects what each of them wrote."""

    check: OracleCheck
    files: str
    environment: Environment
    sandbox: Sandbox
    limits: Limits
    digests: list[str]

    async def ask_judge(self, request: dict[str, Any]) -> list[Any]:
        """The judge file's answer to ``cases``, ``verdict`` or ``domain``. Raises NoEvidence, SandboxFault."""
        action = Action(
            argv=("python3", "-I", "-B", f"{INSIDE_AT}/oracle/judge.py"),
            view=None,
            limits=self.limits,
            env=(("SEALED", SEALED_AT),),
            mounts=(Mount(self.files, SEALED_AT), Mount(INSIDE, INSIDE_AT)),
            toolchain=("python",),  # the judge runs on our own interpreter, whatever the candidate needs
            stdin=json.dumps(request | {"judge": self.check.judge}).encode(),
            cwd="/tmp",
            out_at=OUT_AT,
        )
        return await self._run(action, "the judge", f"{request['ask']}.json")

    async def ask_candidate(self, candidate: Candidate, calls: list[dict[str, Any]]) -> list[Any]:
        """What the candidate says came of each call; not yet checked. Raises NoEvidence, SandboxFault."""
        env = dict(self.environment.env)
        action = Action(
            argv=("python3", f"{INSIDE_AT}/oracle/candidate.py"),
            view=throw_away(candidate.view),
            limits=self.limits,
            env=tuple(sorted((env | candidate_last(env)).items())),
            mounts=(*self.environment.mounts, Mount(INSIDE, INSIDE_AT)),
            toolchain=self.environment.toolchain,
            stdin=json.dumps({"calls": calls}).encode(),
            hidden=self.environment.hidden,
            out_at=OUT_AT,
        )
        return await self._run(action, "the candidate", "outcomes.json")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.digests).encode()).hexdigest()

    async def _run(self, action: Action, who: str, name: str) -> list[Any]:
        finished = await self.sandbox.run(action)
        data = finished.files.get(name, b"")
        self.digests.append(output_digest(finished, data))
        return _answer(finished, self.limits, who, data)


async def judge(
    check: OracleCheck,
    check_digest: str,
    files: str | None,
    environment: Environment,
    candidate: Candidate,
    sandbox: Sandbox,
    baseline: Counts | None,
) -> tuple[Judgement, str]:
    """The judgement, and a digest over what all three sandboxes wrote. Raises SandboxFault."""
    if problem := judge_file_problem(check, files):
        return Judgement.missing(problem), ""
    limits = check_limits(environment.limits, check.timeout_ms)
    steps = Steps(check, files or "", environment, sandbox, limits, [])
    try:
        cases = _checked_cases(
            await steps.ask_judge({"ask": "cases", "seed": seed_of(candidate.fingerprint, check_digest)})
        )
        if baseline is not None and len(cases) < baseline.collected:
            raise NoEvidence(
                f"the judge names {len(cases)} cases and named {baseline.collected} for the baseline;"
                " the number must not depend on the random inputs"
            )
        calls = [{key: case[key] for key in CASE_KEYS if key in case} for case in cases]
        outcomes = checked_outcomes(await steps.ask_candidate(candidate, calls), len(cases))
        # A call that died or gave no JSON is wrong whatever the judge thinks of exceptions, so it is not asked.
        answered = [
            (case, outcome)
            for case, outcome in zip(cases, outcomes, strict=True)
            if "value" in outcome or "raised" in outcome
        ]
        said = checked_verdicts(await steps.ask_judge({"ask": "verdict", "pairs": answered}), len(answered))
        return _weigh(cases, outcomes, said), steps.digest()
    except NoEvidence as nothing:
        return Judgement.missing(str(nothing)), steps.digest()


def seed_of(fingerprint: str, check_digest: str) -> int:
    """A 64-bit seed that only the state and the check decide."""
    return int.from_bytes(hashlib.sha256(f"{fingerprint}\n{check_digest}".encode()).digest()[:8], "big")


def judge_file_problem(check: OracleCheck, files: str | None) -> str:
    if files is None:
        return "an oracle's judge file lies in `files`, and this check has none"
    name = check.judge
    if posixpath.isabs(name) or posixpath.normpath(name) != name or name.startswith(".."):
        return f"the judge file {name!r} must be a plain path below the sealed files"
    return ""


def _answer(finished: Finished, limits: Limits, who: str, data: bytes) -> list[Any]:
    """The JSON list a step left behind, or NoEvidence saying what happened to it."""
    bad = ended_badly(finished, limits).replace("the check", who, 1)
    if bad or finished.exit_code != 0:
        raise NoEvidence(bad or f"{who} ended with exit code {finished.exit_code}: {complaint(finished)}")
    if not data or len(data) > ANSWER_BYTES_MAX:
        raise NoEvidence(f"{who} left {len(data)} bytes of answer (1 to {ANSWER_BYTES_MAX} are read)")
    try:
        answer: object = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        raise NoEvidence(f"the answer of {who} is not JSON: {clip(str(fault), 200)}") from fault
    if not isinstance(answer, list):
        raise NoEvidence(f"the answer of {who} is not a list")
    return cast("list[Any]", answer)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _checked_cases(cases: list[Any]) -> list[dict[str, Any]]:
    if not 1 <= len(cases) <= CASES_MAX:
        raise NoEvidence(f"the judge names {len(cases)} cases; 1 to {CASES_MAX} can be asked")
    for number, case in enumerate(cases, 1):
        call = case.get("call") if isinstance(case, dict) else None
        if not isinstance(call, str) or not all(call.partition(":")[::2]):
            raise NoEvidence(f'case {number} of the judge has no "call" of the form "module:function"')
        case.setdefault("args", [])
        case.setdefault("kwargs", {})
        if not isinstance(case["args"], list) or not isinstance(case["kwargs"], dict):
            raise NoEvidence(f'case {number} of the judge: "args" is a list and "kwargs" an object')
    return cases


def checked_outcomes(outcomes: list[Any], expected: int) -> list[dict[str, Any]]:
    """The candidate's answers, each of exactly one known form. Raises NoEvidence."""
    if len(outcomes) != expected:
        raise NoEvidence(f"the candidate answered {len(outcomes)} of {expected} cases")
    for number, outcome in enumerate(outcomes, 1):
        if not isinstance(outcome, dict) or not _is_known_form(cast("dict[str, Any]", outcome)):
            raise NoEvidence(f"the candidate's answer to case {number} has no known form")
    return outcomes


def _is_known_form(outcome: dict[str, Any]) -> bool:
    match outcome:
        case {"raised": str(), "message": str()}:
            return len(outcome) == 2
        case {"value": _} | {"died": str()} | {"unanswerable": str()}:
            return len(outcome) == 1
        case _:
            return False


def checked_verdicts(said: list[Any], expected: int) -> list[str | None]:
    if len(said) != expected or not all(item is None or isinstance(item, str) for item in said):
        raise NoEvidence("the judge must answer each case with None or a message")
    return said


def _weigh(cases: list[dict[str, Any]], outcomes: list[dict[str, Any]], said: list[str | None]) -> Judgement:
    verdicts = iter(said)
    failures: list[Failure] = []
    died = 0
    for number, (case, outcome) in enumerate(zip(cases, outcomes, strict=True), 1):
        broken: str | None = outcome.get("died", outcome.get("unanswerable"))
        died += broken is not None
        message = broken if broken is not None else next(verdicts)
        if message is not None:
            name = case.get("name")
            failures.append(Failure(name if isinstance(name, str) else f"{case['call']} #{number}", message))
    wrong = len(failures)
    counts = Counts(len(cases), len(cases) - wrong, wrong - died, died, 0)
    if not wrong:
        return Judgement.passing(counts)
    # Distance 1, not the number: the inputs are drawn anew for every state, so their number wrong is chance, and a
    # lucky draw must not look like progress.
    return Judgement.failing(f"{wrong} of {len(cases)} cases are wrong", 1, counts, bounded(failures))

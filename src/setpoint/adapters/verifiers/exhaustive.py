"""Evidence of level ``proof``: every input of a finite domain, none left out.

What such a pass says: for every input of the declared domain the candidate's function gave an answer the judge
accepts. It holds over the declared finite domain and nothing else: not for inputs outside it, and only as well as the
judge's own rule is right.

A judge file of this kind::

    call = "config:clamp"
    def domain():                                        # one list of values per argument
        return [list(range(-8, 9)), [True, False]]
    def judge(arguments, outcome):                       # {"value": ...} or {"raised": ..., "message": ...}
        low, strict = arguments
        return None if outcome == {"value": max(low, 0)} else f"gave {outcome}"

The judge declares; the *runtime* enumerates the whole product, has every input run in candidate sandboxes and every
outcome judged in sandboxes without the candidate. Nobody can choose which inputs are looked at. Two things could still
make a pass hollow, and are looked for:

- A domain drawn at random is a sample. It is asked for twice, in two interpreters, and must be the same both times.
- A function whose answers depend on more than its arguments has answered for one order of calls only. Every input is
  run a second time in the opposite order, in other interpreters; an answer that differs refutes the input.

An input that was not run or not judged, for whatever reason, leaves no evidence at all: a sample is no proof.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from math import prod
from typing import Any, Final, TypeVar, cast

from setpoint.adapters.verifiers.oracle import NoEvidence, Steps, checked_outcomes, checked_verdicts, judge_file_problem
from setpoint.adapters.verifiers.parsers import bounded, clip
from setpoint.adapters.verifiers.sealed_command import check_limits
from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.contract import Environment, OracleCheck
from setpoint.kernel.evidence import Counts, Failure
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Candidate

INPUTS_MAX: Final = 100_000
"""A small function is through in a minute; a larger domain is refused, since a part of it proves nothing."""
BATCH: Final = 5_000
"""Inputs a sandbox run: their answers fit the 8 MiB that one run may leave behind at 1,600 bytes each."""
NAME_CHARS_MAX: Final = 120

Input = tuple[Any, ...]
T = TypeVar("T")
NO_DOMAIN: Final = (
    "level proof needs the judge to declare its whole finite domain: call = 'module:function', domain() -> one list of "
    "values per argument, judge(arguments, outcome)"
)


async def judge(
    check: OracleCheck,
    check_digest: str,
    files: str | None,
    environment: Environment,
    candidate: Candidate,
    sandbox: Sandbox,
    baseline: Counts | None,
) -> tuple[Judgement, str]:
    """The judgement, and a digest over what all sandboxes wrote. Raises SandboxFault."""
    if problem := judge_file_problem(check, files):
        return Judgement.missing(problem), ""
    limits = check_limits(environment.limits, check.timeout_ms)
    steps = Steps(check, files or "", environment, sandbox, limits, [])
    try:
        call, inputs = await _declared(steps)
        if baseline is not None and len(inputs) < baseline.collected:
            raise NoEvidence(f"the domain has {len(inputs)} inputs and had {baseline.collected} for the baseline")
        outcomes = await _run_all(steps, candidate, call, inputs)
        again = await _run_all(steps, candidate, call, inputs[::-1])
        wrong = await _refuted(steps, call, inputs, outcomes, again[::-1])
    except NoEvidence as nothing:
        return Judgement.missing(f"no proof: {nothing}"), steps.digest()
    return _weigh(len(inputs), wrong), steps.digest()


async def _declared(steps: Steps) -> tuple[str, list[Input]]:
    """The function and every input of the declared domain, in the order of the product."""
    declared = await steps.ask_judge({"ask": "domain"})
    if await steps.ask_judge({"ask": "domain"}) != declared:
        raise NoEvidence("the judge declares another domain each time it is asked; a random domain is a sample")
    if len(declared) != 2:
        raise NoEvidence(NO_DOMAIN)
    call, domain = declared
    if not isinstance(call, str) or not all(call.partition(":")[::2]):
        raise NoEvidence(f'the judge\'s call is {clip(repr(call), 80)}; it has the form "module:function"')
    return call, enumerate_domain(domain)


def enumerate_domain(domain: object) -> list[Input]:
    """The full product, once each. NoEvidence when it is empty, has a value twice, or is larger than can be run."""
    if not isinstance(domain, list) or not domain:
        raise NoEvidence("the domain is not one list of values per argument")
    arguments = cast("list[list[Any]]", domain)
    for position, values in enumerate(arguments, 1):
        spelled = [_spelled(value) for value in values]
        if not spelled:
            raise NoEvidence(f"argument {position} has no value in the domain, so there is no input at all")
        if len(set(spelled)) != len(spelled):
            raise NoEvidence(f"argument {position} has a value twice in the domain; a domain is a set")
    size = prod(len(values) for values in arguments)
    if size > INPUTS_MAX:
        raise NoEvidence(f"the domain has {size} inputs; up to {INPUTS_MAX} are enumerated, and a part is no proof")
    return list(itertools.product(*arguments))


async def _run_all(steps: Steps, candidate: Candidate, call: str, inputs: list[Input]) -> list[dict[str, Any]]:
    outcomes: list[dict[str, Any]] = []
    for some in _batches(inputs):
        calls = [{"call": call, "args": list(arguments), "kwargs": {}} for arguments in some]
        outcomes += checked_outcomes(await steps.ask_candidate(candidate, calls), len(some))
    return outcomes


async def _refuted(
    steps: Steps, call: str, inputs: list[Input], outcomes: list[dict[str, Any]], again: list[dict[str, Any]]
) -> list[Failure]:
    """Every input whose outcome is wrong, with why; exactly one word on each input."""
    wrong: dict[int, str] = {}
    to_judge: list[int] = []
    for number, (first, second) in enumerate(zip(outcomes, again, strict=True)):
        broken = first.get("died", first.get("unanswerable"))
        if broken is not None:
            wrong[number] = str(broken)
        elif _spelled(first) != _spelled(second):
            wrong[number] = f"the answer depends on more than the arguments: {clip(f'{first} and {second}', 200)}"
        else:
            to_judge.append(number)
    for some in _batches(to_judge):
        pairs = [[list(inputs[number]), outcomes[number]] for number in some]
        said = checked_verdicts(await steps.ask_judge({"ask": "verdict", "pairs": pairs}), len(some))
        wrong |= {number: message for number, message in zip(some, said, strict=True) if message is not None}
    return [Failure(_name(call, inputs[number]), wrong[number]) for number in sorted(wrong)]


def _weigh(total: int, wrong: list[Failure]) -> Judgement:
    """The number refuted is a distance here: the inputs are the same for every state, so it is not chance."""
    counts = Counts(total, total - len(wrong), len(wrong), 0, 0)
    if not wrong:
        return Judgement("pass", f"exhaustive: {total} of {total} inputs of the declared domain", 0, counts)
    reason = f"refuted: {len(wrong)} of {total} inputs of the declared domain are wrong"
    return Judgement.failing(reason, len(wrong), counts, bounded(wrong))


def _name(call: str, arguments: Input) -> str:
    return clip(f"{call}({', '.join(json.dumps(value) for value in arguments)})", NAME_CHARS_MAX)


def _spelled(value: object) -> str:
    """Tells apart what Python calls equal: 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)


def _batches(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]

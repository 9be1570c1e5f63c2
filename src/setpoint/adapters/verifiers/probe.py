"""Judge a ``probe`` check: a function the host registered, given the candidate's facts as plain values.

A probe is the host's own code and is trusted like it; it runs on a thread, and the wait for it is bounded. What it may
answer, and what each answer means:

- ``True`` or ``False``: met, or not;
- a number of 0 or more: the distance, so 0 is met;
- ``{"passed": bool}``, and if wanted ``"distance": n``, ``"failures": [{"name": ..., "message": ...}]`` and
  ``"value"`` (anything; it only enters the output digest).

An exception, another type, a number below 0 or no answer in time is missing evidence.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from setpoint.adapters.verifiers.facts import facts_of
from setpoint.adapters.verifiers.parsers import bounded
from setpoint.adapters.verifiers.verdicts import Judgement
from setpoint.kernel.contract import ProbeCheck
from setpoint.kernel.evidence import Failure
from setpoint.ports.verifier import Candidate

Probe = Callable[[dict[str, Any]], Any]


class _ProbeFailure(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    message: str = ""


class _ProbeAnswer(msgspec.Struct, forbid_unknown_fields=True):
    passed: bool
    distance: int = 1
    failures: list[_ProbeFailure] = []
    value: Any = None


async def judge(
    check: ProbeCheck, candidate: Candidate, probes: Mapping[str, Probe], wall_ms: int
) -> tuple[Judgement, str]:
    """The judgement and a digest of the answer."""
    probe = probes.get(check.name)
    if probe is None:
        known = ", ".join(sorted(probes)) or "none"
        return Judgement.missing(f"no probe {check.name!r} is registered here; registered: {known}"), ""
    try:
        answer = await ask(probe, facts_of(candidate), wall_ms)
    except TimeoutError:
        return Judgement.missing(f"the probe {check.name} did not answer within {wall_ms} ms"), ""
    except Exception as fault:  # noqa: BLE001 - whatever a probe raises means that there is no evidence
        return Judgement.missing(f"the probe {check.name} raised {type(fault).__name__}: {fault}"), ""
    raw = json.dumps(answer, sort_keys=True, default=repr, skipkeys=True)
    return weigh(check.name, answer), hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


def weigh(name: str, answer: object) -> Judgement:
    """Pure: what a probe's answer means."""
    match answer:
        case bool():
            return Judgement.passing() if answer else Judgement.failing("the probe says no")
        case int() | float():
            if not 0 <= answer < 1e15:
                return Judgement.missing(f"the probe {name} answered {answer!r}; a distance is 0 or more")
            return Judgement.passing() if answer == 0 else Judgement.failing(f"distance {answer}", -int(-answer // 1))
        case dict():
            return _weigh_mapping(name, cast("dict[str, Any]", answer))
        case _:
            kind = type(answer).__name__
            return Judgement.missing(f"the probe {name} answered a {kind}, not a boolean, number or mapping")


def _weigh_mapping(name: str, mapping: dict[str, Any]) -> Judgement:
    try:
        answer = msgspec.convert(mapping, _ProbeAnswer)
    except msgspec.ValidationError as fault:
        return Judgement.missing(f"the probe {name} answered a mapping of another form: {fault}")
    if answer.passed and not answer.failures:
        return Judgement.passing()
    if answer.passed:
        return Judgement.missing(f"the probe {name} says passed and names failures")
    failures = [Failure(failure.name, failure.message) for failure in answer.failures]
    return Judgement.failing("the probe says no", max(answer.distance, len(failures)), None, bounded(failures))


async def ask(probe: Probe, facts: dict[str, Any], wall_ms: int) -> Any:
    """Run ``probe`` on a thread of its own. Raises what it raises, TimeoutError when it takes too long.

    A thread cannot be ended; one that hangs is a daemon, so it holds up neither this loop nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, fault: BaseException | None) -> None:
        if not done.done():
            done.set_exception(fault) if fault is not None else done.set_result(result)

    def work() -> None:
        result, fault = None, None
        try:
            result = probe(facts)
        except StopIteration as stop:  # a future refuses to carry this one
            fault = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:  # noqa: BLE001 - carried to the caller, who says what it means
            fault = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        try:
            loop.call_soon_threadsafe(settle, result, fault)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    threading.Thread(target=work, name="setpoint-probe", daemon=True).start()
    return await asyncio.wait_for(done, wall_ms / 1000)

"""Every rule of a task with the mechanism that holds it (R081).

A rule counts as held only if it holds when the model ignores every instruction. Rules that live in the goal's words
alone are found by how they are phrased: a hint for people, never a guarantee that all were found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from setpoint.app.document import Path, dotted
from setpoint.kernel.contract import (
    Criterion,
    ExprCheck,
    Invariant,
    Level,
    OracleCheck,
    Predicate,
    ProbeCheck,
    RunCheck,
    Task,
    ToolGrant,
)
from setpoint.kernel.exposure import WRITING_TOOLS
from setpoint.kernel.units import format_duration, format_size, format_usd


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a task and what holds it. ``mechanism`` is empty when only the model's compliance does."""

    path: str
    rule: str
    mechanism: str
    required: bool = True

    @property
    def prompt_only(self) -> bool:
        return not self.mechanism


def audit(task: Task) -> list[Rule]:
    """Every rule of the task with its mechanism, those that live in words last."""
    return [*_enforced(task), *rules_in_words(task)]


def is_closed(rules: Iterable[Rule]) -> bool:
    """False when a required rule is held by nothing but the prompt; `lint --closure` then exits 1."""
    return not any(rule.required and rule.prompt_only for rule in rules)


def checks_of(task: Task) -> Iterator[tuple[Path, Criterion | Invariant]]:
    """Each check with its place in the manifest."""
    for index, criterion in enumerate(task.done):
        yield ("spec", "done", index), criterion
    for index, invariant in enumerate(task.invariants):
        yield ("spec", "invariants", index), invariant


def _enforced(task: Task) -> Iterator[Rule]:
    for index, glob in enumerate(task.goal.forbid):
        yield Rule(f"spec.goal.forbid[{index}]", f"{glob} is not touched", "gate; change set at every savepoint")
    yield from _environment_rules(task)
    tools = ", ".join(grant.tool for grant in task.actions) or "nothing"
    yield Rule("spec.actions", f"only {tools}", "gate: allow-list")
    unbound = _unbound_shell(task)
    for index, grant in enumerate(task.actions):
        yield from _grant_rules(f"spec.actions[{index}]", grant, unbound)
    yield Rule("spec.observe.max_tokens", f"{task.observe.max_tokens} tokens an observation", "observation shaping")
    for index, pattern in enumerate(task.observe.redact):
        yield Rule(f"spec.observe.redact[{index}]", f"{pattern} is blanked", "redaction before log and prompt")
    for path, check in checks_of(task):
        yield Rule(dotted(path), f"{check.id}: {_said(check.predicate)}", _judged(check))
    budget = task.budget
    bounds = f"{budget.turns} turns, {budget.tokens} tokens, ${format_usd(budget.usd_micros)}, "
    yield Rule(
        "spec.budget",
        bounds + f"{format_duration(budget.wall_ms)} wall",
        "checked with the projected call before it is made",
    )
    yield Rule("spec.policy.commit", f"commit when {task.policy.commit}", "delta measured by the runtime")
    for index, rule in enumerate(task.policy.approve):
        mechanism = "gate: held; dispatched by a signed approval of exactly this call, once"
        yield Rule(f"spec.policy.approve[{index}]", f"a person is asked when {rule.when}", mechanism)


def _environment_rules(task: Task) -> Iterator[Rule]:
    environment, limits = task.environment, task.environment.limits
    path = "spec.environment"
    yield Rule(f"{path}.sandbox.tier", f"isolation of at least {environment.tier}", "refusal to start below it")
    network = ", ".join(environment.network) or "no network"
    yield Rule(f"{path}.sandbox.network", network, "network namespace of the sandbox")
    bounds = (
        f"{format_duration(limits.wall_ms)} wall, {format_duration(limits.cpu_ms)} cpu, "
        f"{format_size(limits.memory_bytes)} memory, {limits.pids} pids, {format_size(limits.disk_bytes)} disk"
    )
    yield Rule(f"{path}.sandbox.limits", bounds, "supervisor and kernel limits; the whole process tree is ended")
    if environment.base:
        yield Rule(f"{path}.base", f"starts from commit {environment.base}", "refusal to start elsewhere")


def _unbound_shell(task: Task) -> bool:
    shell = task.grant("shell_exec")
    return shell is not None and shell.paths is None and not shell.read_only


def _grant_rules(path: str, grant: ToolGrant, unbound_shell: bool) -> Iterator[Rule]:
    if grant.paths is not None:
        mechanism = "gate, where the path leads; change set at every savepoint"
        if unbound_shell and grant.tool in WRITING_TOOLS:
            mechanism = f"gate, for {grant.tool} alone: shell_exec has no paths and may write elsewhere"
        yield Rule(f"{path}.paths", f"{grant.tool} stays in {', '.join(grant.paths)}", mechanism)
    if grant.read_only:
        yield Rule(f"{path}.read_only", f"{grant.tool} runs reading commands only", "gate; writes stay staged")
    if grant.max_calls is not None:
        yield Rule(f"{path}.max_calls", f"{grant.tool} at most {grant.max_calls} times", "gate: counted in the log")
    if grant.rate is not None:
        window = f"{grant.tool} at most {grant.rate.calls} times in {format_duration(grant.rate.per_ms)}"
        yield Rule(f"{path}.rate", window, "gate: call times kept in the record")
    for expr in grant.require:
        yield Rule(f"{path}.require", expr, "gate: evaluated before dispatch")
    for expr in grant.ensure:
        yield Rule(f"{path}.ensure", expr, "evaluated after dispatch; a break rolls back")


def _said(predicate: Predicate) -> str:
    match predicate:
        case RunCheck(command=command):
            return command
        case ExprCheck(expr=expr):
            return expr
        case ProbeCheck(name=name):
            return name
        case OracleCheck(judge=judge):
            return judge


def _judged(check: Criterion | Invariant) -> str:
    where = "second sandbox, files out of reach" if check.level >= Level.SEALED else "judged by the runtime"
    if isinstance(check, Invariant):
        effect = "a break rolls back" if check.severity == "hard" else "a break counts as debt"
        return f"{check.level.label}: {where}; {effect}"
    return f"{check.level.label}: {where}; no certificate without it"


# Rules in words. A goal describes a wanted state ("the parser never raises"); what is looked for are sentences about
# what the *work* may do, hence a prohibition followed by something one does to a project.
_DEED: Final = (
    r"(?:chang|touch|edit|modify|modif|alter|delet|remov|renam|mov|add|install|us|call|writ|creat|commit|push|access|read"
    r"|send|break|weaken|skip|disabl|introduc|overwrit|revert|download|connect)(?:e|ing|y|es|s)?"
)
_FORBIDDEN_DEED: Final = re.compile(
    rf"\b(?:do not|don't|never|must not|mustn't|may not|not allowed to)\s+(?:\w+ly\s+)?{_DEED}\b"
    rf"|\bwithout\s+(?:\w+ly\s+)?{_DEED}\b|\bonly\s+{_DEED}\b"
    r"|\b(?:leave|keep|stay|stays|remain|remains)\b.*\b(?:unchanged|untouched|intact|alone|as (?:it|they) (?:is|are))\b"
    r"|\bno more than\b|\bat most\b",
    re.IGNORECASE,
)
_WISH: Final = re.compile(r"\b(?:avoid|prefer|try (?:not )?to|please|should not|shouldn't)\b", re.IGNORECASE)
_COMMON: Final = frozenset(
    """the and for are not with that this from into must never only may more most than without any all keep leave stay
    remain change changes changed changing touch touched touching modify modified modifying edit edited editing delete
    deleted remove removed add added use using file files code them they when what which its should avoid prefer try
    please don unchanged untouched intact alone exists path startswith endswith python run size true false""".split()  # noqa: SIM905
)


def rules_in_words(task: Task) -> Iterator[Rule]:
    """Sentences of the goal that bind the work, each with the mechanical rule that speaks of the same thing, if any."""
    for sentence in re.split(r"(?<=[.!?])\s+|\n\s*[-*]\s+|\n\n|;\s+", task.goal.text):
        said = " ".join(sentence.split())
        if _FORBIDDEN_DEED.search(said):
            yield Rule("spec.goal.text", said, _held_by(task, said))
        elif _WISH.search(said):
            yield Rule("spec.goal.text", said, _held_by(task, said), required=False)


def _held_by(task: Task, sentence: str) -> str:
    """What holds a sentence, judged by the words it shares with a rule; or "". Criteria judge results, not deeds."""
    words = _words(sentence)
    held = [(f"goal.forbid {glob}", glob) for glob in task.goal.forbid]
    held += [(f"paths of {grant.tool}", " ".join(grant.paths)) for grant in task.actions if grant.paths]
    held += [(check.address, f"{check.id} {_said(check.predicate)}") for check in task.invariants]
    if not task.environment.network:
        held.append(("network namespace of the sandbox", "network internet download connect access online"))
    for name, text in held:
        if any(_same_word(ours, theirs) for ours in words for theirs in _words(text)):
            return name
    return ""


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z][a-z0-9]{2,}", text.lower().replace("_", " ")) if word not in _COMMON}


def _same_word(one: str, other: str) -> bool:
    return one.rstrip("s") == other.rstrip("s")

"""What is weak about a task that is valid: each weakness with its place and a remedy.

A manifest that loads can still be a poor contract: checks the model can edit, evidence that shows form and not
behaviour, authority the task does not need, rules that live in the goal's words alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from setpoint.app.audit import checks_of, rules_in_words
from setpoint.app.document import Path, dotted
from setpoint.kernel.contract import (
    ExprCheck,
    Invariant,
    Level,
    OracleCheck,
    Predicate,
    ProbeCheck,
    RunCheck,
    Task,
    Tier,
)
from setpoint.kernel.exposure import (
    HORIZON_LONG,
    TOOLS,
    WRITING_TOOLS,
    Authority,
    Exposure,
    State,
    closure,
    expose,
    required_level,
)
from setpoint.kernel.globs import is_inside, matches

if TYPE_CHECKING:
    from setpoint.adapters.approvers.roster import Approver

Weight = Literal["error", "warning", "advice"]
Locate = Callable[[Path], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One weakness. Line and column are 0 when the place is not known. ``error``: the task would not start."""

    code: str
    severity: Weight
    path: str
    message: str
    remedy: str
    line: int = 0
    column: int = 0

    def render(self, file: str) -> str:
        where = f"{file}:{self.line}:{self.column}" if self.line else file
        return f"{where}: {self.severity}: {self.message} [{self.code}]\n  {self.remedy}"


def lint(
    task: Task,
    *,
    locate: Locate | None = None,
    tier: Tier | None = None,
    approvers: Sequence[Approver] | None = None,
    now_ms: int = 0,
) -> list[Finding]:
    """Every finding, errors first, then in the order of the file.

    ``tier``: what this machine's sandbox gives. ``approvers``: whom this installation trusts at ``now_ms``; None: not
    known, and not judged.
    """
    checks = (
        _closure,
        _evidence,
        _vacuous,
        _tampering,
        _sealed_runs,
        _held_out,
        _proofs,
        _bypassed_paths,
        _unusable_grants,
        _authority,
        _secrets,
        lambda task, _: _approvals(task, approvers, now_ms),
        _without_effect,
        _budget,
        _environment,
        _redaction,
        _advisory_rules,
    )
    found: list[Finding] = []
    for check in checks:
        for code, severity, path, message, remedy in check(task, tier):
            line, column = locate(path) if locate else (0, 0)
            found.append(Finding(code, severity, dotted(path), message, remedy, line, column))
    return sorted(found, key=lambda finding: (finding.severity != "error", finding.line, finding.column))


_Raw = tuple[str, Weight, Path, str, str]
_DONE: Final[Path] = ("spec", "done")
_SANDBOX: Final[Path] = ("spec", "environment", "sandbox")


def _closure(task: Task, tier: Tier | None) -> Iterator[_Raw]:
    effective = tier or task.environment.tier
    for gap in closure(task, expose(task, tier=tier), effective):
        yield gap.code, "error", ("spec",), gap.message, gap.remedy


# Evidence.


def _evidence(task: Task, tier: Tier | None) -> Iterator[_Raw]:
    if not task.done:
        return
    exposure = expose(task, tier=tier)
    sealed = any(criterion.level >= Level.SEALED for criterion in task.done)
    if not sealed and required_level(exposure) < Level.SEALED:
        long = f", and {exposure.h} turns leave time to find what satisfies a visible test" * (
            exposure.h > HORIZON_LONG
        )
        yield (
            "no-sealed-check",
            "warning",
            _DONE,
            f"no criterion is sealed: the model can read every check, and edit some{long}",
            "add a criterion with `files: ./sealed` and `level: sealed`",
        )
    if not any(_is_behavioural(criterion.predicate, criterion.level) for criterion in task.done):
        yield (
            "no-behavioural-evidence",
            "warning",
            _DONE,
            "every criterion is static: it shows that the result is well-formed, not that it works",
            "add a criterion that runs the code, for example run: python -m pytest -q",
        )


def _is_behavioural(predicate: Predicate, level: Level) -> bool:
    return level >= Level.VISIBLE and not isinstance(predicate, ExprCheck)


_VACUOUS_COMMAND: Final = re.compile(
    r"\s*(true|:|exit\s+0|echo\b[^|&;]*|test\s+1|\[\s*1\s*\])\s*|.*\|\|\s*(true|:)\s*$"
)


def _vacuous(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for path, check in checks_of(task):
        match check.predicate:
            case RunCheck(command=command) if _VACUOUS_COMMAND.fullmatch(command):
                shown = f"`{command.strip()}` passes whatever the state is"
            case ExprCheck(expr=expr) if expr.strip() == "true":
                shown = "`true` holds whatever the state is"
            case _:
                continue
        yield "vacuous-check", "warning", path, shown, "judge something the change can break"


def _held_out(task: Task, _: Tier | None) -> Iterator[_Raw]:
    # A proof runs its whole domain: what is fitted to all of it is right on all of it.
    sealed = [criterion for criterion in task.done if criterion.level is Level.SEALED]
    if sealed and not any(criterion.disclose in ("none", "verdict") for criterion in sealed):
        yield (
            "no-held-out-check",
            "warning",
            _DONE,
            "every sealed check names its failures to the model, so a fix can be fitted to them",
            "add a sealed check with `disclose: verdict` or `disclose: none`",
        )


def _proofs(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for path, check in checks_of(task):
        if check.level is Level.PROOF:
            yield (
                "proof-over-domain",
                "advice",
                (*path, "level"),
                f"`{check.id}` proves its rule over the finite domain its judge declares, and over nothing else",
                "keep a sealed check for inputs outside that domain, and read the judge's rule as carefully as code",
            )


_TAMPERINGS: Final = (
    "candidate code imported into the judge can (1) patch pytest's own internals, (2) return objects whose __eq__ "
    "lies, (3) inspect its caller and behave only for the judge"
)


def _tampering(task: Task, _: Tier | None) -> Iterator[_Raw]:
    writers = [grant for grant in task.actions if grant.tool in WRITING_TOOLS and not grant.read_only]
    has_oracle = any(isinstance(criterion.predicate, OracleCheck) for criterion in task.done)
    for path, check in checks_of(task):
        predicate = check.predicate
        if not isinstance(predicate, RunCheck):
            continue
        if not has_oracle and check.level >= Level.SEALED:
            if re.search(r"\b(pytest|unittest)\b", predicate.command):
                yield "judge-imports-candidate", "advice", path, f"in `{check.id}`, {_TAMPERINGS}", _HAVE_AN_ORACLE
            yield (
                "sealed-answers-readable",
                "advice",
                path,
                f"candidate code that `{check.id}` runs can read what the check can: $SEALED, with the answers",
                f"{_HAVE_AN_ORACLE}; or let the check only look at files, and run nothing",
            )
        if check.level == Level.VISIBLE and writers:
            exposed = [word for word in _judged_paths(predicate.command) if _writable(task, word)]
            if exposed:
                names = ", ".join(exposed)
                yield (
                    "writable-check",
                    "warning",
                    path,
                    f"`{check.id}` judges by {names}, which {writers[0].tool} may change and nothing protects",
                    f'add forbid: ["{exposed[0].rstrip("/")}/**"] to spec.goal, or an invariant over changes',
                )


_HAVE_AN_ORACLE: Final = "also judge by `oracle`: a judge file that never meets the candidate"


_RUNS_PYTHON: Final = re.compile(r"\b(python[\d.]*|pytest|py\.test|unittest|tox|nox)\b")
_IMPORTS_NOTHING: Final = re.compile(r"-m\s+(compileall|py_compile|tabnanny|ast|tokenize)\b")


def _sealed_runs(task: Task, _: Tier | None) -> Iterator[_Raw]:
    """What code of the candidate can do to a sealed check in whose process it runs."""
    for path, check in checks_of(task):
        predicate = check.predicate
        if not isinstance(predicate, RunCheck) or check.level < Level.SEALED:
            continue
        imports = _RUNS_PYTHON.search(predicate.command) and not _IMPORTS_NOTHING.search(predicate.command)
        if predicate.parse == "exit" and imports:
            yield (
                "exit-code-forgeable",
                "warning",
                path,
                f"`{check.id}` is judged by its exit code alone: `os._exit(0)` in imported candidate code passes it",
                "use parse: pytest or another report, which must be complete, or judge by `oracle`",
            )
        if check.disclose == "full":
            yield (
                "sealed-content-disclosed",
                "warning",
                (*path, "disclose"),
                f"`{check.id}` discloses in full: candidate code that runs in it can put sealed text into its messages",
                "use disclose: names, verdict or none",
            )


_TEST_FOLDERS: Final = ("tests", "specs", "checks", "testing")
_TEST_PART: Final = re.compile(r"(^|/)(tests?|specs?|checks?|testing)(/|$|[._-])")
_SCRIPT: Final = re.compile(r"\.(py|sh|js|ts|rb|pl)$")
_BEFORE_A_PROGRAM: Final = re.compile(r"if|then|else|elif|do|while|until|time|exec|env|command|\w+=.*")
_RUNNER: Final = re.compile(r"\b(pytest|py\.test|tox|nox|unittest)\b")
_SUBCOMMANDS: Final = re.compile(
    r"make|just|cargo|go|npm|pnpm|yarn|mix|rake|gradlew?|mvn|dotnet|bazel|meson|ninja|uv|poetry"
)


def _judged_paths(command: str) -> list[str]:
    """Words of a command that look like paths of tests or scripts inside the workspace."""
    found: list[str] = []
    for simple in re.split(r"[;&|()\n]+", command):
        words = re.findall(r"[$\w.@%+=:,/-]+", simple)
        while words and _BEFORE_A_PROGRAM.fullmatch(words[0]):
            words.pop(0)
        folders = _TEST_FOLDERS if not any(_SUBCOMMANDS.fullmatch(word) for word in words[:1]) else ()
        if _RUNNER.search(simple):
            folders = ("test", "spec", "check", *_TEST_FOLDERS)
        found += [word.removeprefix("./") for word in words[:1] if "/" in word and _looks_judged(word, ())]
        found += [word.removeprefix("./") for word in words[1:] if _looks_judged(word, folders)]
    return list(dict.fromkeys(found)) or (["tests"] if _RUNNER.search(command) else [])


def _looks_judged(word: str, folders: tuple[str, ...]) -> bool:
    """``folders``: words that name one even without a slash. `test` mostly is a program or a subcommand."""
    if word.startswith(("-", "/", "$")):
        return False
    return word in folders or bool(re.search(r"[/.]", word) and (_TEST_PART.search(word) or _SCRIPT.search(word)))


def _writable(task: Task, path: str) -> bool:
    """Whether a mutation of ``path`` could be kept: not forbidden, inside a grant, named in no hard invariant."""
    plain = [part for part in path.split("/") if part not in ("", ".")]
    if not plain or ".." in plain:
        return False
    targets = ("/".join(plain), "/".join([*plain, "x"]))
    if any(matches(glob, target) for glob in task.goal.forbid for target in targets):
        return False
    if any(_mentions(invariant, plain[0]) for invariant in task.invariants if invariant.severity == "hard"):
        return False
    grants = [grant for grant in task.actions if grant.tool in WRITING_TOOLS and not grant.read_only]
    return any(
        grant.paths is None or any(matches(glob, target) for glob in grant.paths for target in targets)
        for grant in grants
    )


def _mentions(invariant: Invariant, word: str) -> bool:
    return isinstance(invariant.predicate, ExprCheck) and word in invariant.predicate.expr


# Authority.


def needs(task: Task) -> Exposure:
    """The least exposure that can still meet the task's criteria, as far as the contract shows (R243)."""
    writes = any(grant.tool not in TOOLS or grant.tool in WRITING_TOOLS for grant in task.actions)
    outside = any(isinstance(criterion.predicate, ProbeCheck) for criterion in task.done)
    if outside:
        return Exposure(task.budget.turns, State.S3, Authority.A2, ("a criterion judges state outside the workspace",))
    if writes:
        return Exposure(task.budget.turns, State.S2, Authority.A1, ("every criterion judges the workspace alone",))
    return Exposure(task.budget.turns, State.S1, Authority.A0, ("no action changes anything",))


def _authority(task: Task, _: Tier | None) -> Iterator[_Raw]:
    needed, granted = needs(task), expose(task)
    need = f"the task needs {needed.a.name}/{needed.s.name} ({needed.why[0]})"
    if granted.a > needed.a or granted.s > needed.s:
        if task.environment.tier == "none":
            path, remedy = (*_SANDBOX, "tier"), "set sandbox.tier to namespaces"
        elif task.environment.network:
            path, remedy = (*_SANDBOX, "network"), "set sandbox.network to none, with what it fetches in a mount"
        else:
            path, remedy = ("spec", "actions"), "take the tools of higher authority off the list"
        yield (
            "authority-exceeds-need",
            "warning",
            path,
            f"{need}, the environment grants {granted.a.name}/{granted.s.name} ({'; '.join(granted.why[1:])})",
            remedy,
        )
    shell = task.grant("shell_exec")
    if shell and not shell.read_only and shell.paths is None and not shell.require and shell.max_calls is None:
        index = task.actions.index(shell)
        bounded = task.goal.forbid or any(invariant.severity == "hard" for invariant in task.invariants)
        if not bounded:
            yield (
                "unlimited-shell",
                "warning",
                ("spec", "actions", index),
                "shell_exec may change anything in the workspace, and nothing protects any path",
                'give it paths: ["src/**"], or name what must stay in spec.goal.forbid',
            )
    if not task.actions:
        message = "no action is allowed, so the model can change nothing"
        yield "no-actions", "warning", ("spec", "actions"), message, "allow the tools the task needs"


def _bypassed_paths(task: Task, _: Tier | None) -> Iterator[_Raw]:
    open_tools = [
        grant.tool
        for grant in task.actions
        if grant.tool in WRITING_TOOLS and grant.paths is None and not grant.read_only
    ]
    for index, grant in enumerate(task.actions):
        if grant.paths is not None and grant.tool in WRITING_TOOLS and "shell_exec" in open_tools:
            yield (
                "paths-bypassed",
                "warning",
                ("spec", "actions", index),
                f"{grant.tool} is bound to {', '.join(grant.paths)}, but shell_exec may write anywhere",
                "give shell_exec `paths` too, or protect the rest with forbid or an invariant",
            )


def _unusable_grants(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for index, grant in enumerate(task.actions):
        if grant.tool in WRITING_TOOLS and grant.paths and all(_forbidden(task, glob) for glob in grant.paths):
            yield (
                "grant-forbidden",
                "warning",
                ("spec", "actions", index, "paths"),
                f"{grant.tool} may work in {', '.join(grant.paths)}, all of which goal.forbid protects",
                "take the action off the list, or name the paths it is for",
            )


def _forbidden(task: Task, glob: str) -> bool:
    return any(is_inside(glob, wider) for wider in task.goal.forbid)


_SECRET_NAME: Final = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|PRIVATE|CREDENTIAL)", re.IGNORECASE)
_SECRET_FOLDER: Final = re.compile(
    r"/\.(ssh|aws|gnupg|config|kube|docker|netrc|password-store)(/|$)|^/(root|home/[^/]+)$"
)


def _secrets(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for name, _value in task.environment.env:
        if _SECRET_NAME.search(name):
            yield (
                "secret-in-reach",
                "warning",
                ("spec", "environment", "env", name),
                f"{name} looks like a secret, and every action can read its environment",
                "keep credentials out of the sandbox; tests can use a made-up value under another name",
            )
    for index, mount in enumerate(task.environment.mounts):
        if _SECRET_FOLDER.search(mount.host):
            path = ("spec", "environment", "mounts", index)
            message = f"{mount.host} may hold credentials, and every action can read it"
            yield "secret-in-reach", "warning", path, message, "mount only the folder the task needs"


def _approvals(task: Task, approvers: Sequence[Approver] | None, now_ms: int) -> Iterator[_Raw]:
    """A rule that asks people who are not there: its calls could only ever expire, so the task would not start."""
    if approvers is None or not task.policy.approve:
        return
    from setpoint.app.asking import unanswerable  # with the keys' library, which other tasks need not wait for

    for index, rule in enumerate(task.policy.approve):
        why = unanswerable(rule, approvers, now_ms)
        if why:
            path = ("spec", "policy", "approve", index)
            message = f"nobody can give the approval this rule asks for: {why}"
            yield "no-approver", "error", path, message, "name them, with role and key, in approvers.yaml"


def _without_effect(task: Task, _: Tier | None) -> Iterator[_Raw]:
    """What may be written, and does nothing in this release."""
    policy = task.policy
    for index, step in enumerate(policy.on_stall):
        if step == "narrow":
            message = "`narrow` has no effect in this release: it is passed over"
            yield "no-effect-yet", "warning", ("spec", "policy", "on_stall", index), message, "use next_model or ask"
    if policy.drift != "detect":
        yield (
            "no-effect-yet",
            "warning",
            ("spec", "policy", "drift"),
            f"`drift: {policy.drift}` has no effect in this release: nothing watches a converged state or puts it back",
            "write detect, and ask with `setpoint diff`, from a timer for example; `converge` goes back",
        )


# Bounds.


def _budget(task: Task, _: Tier | None) -> Iterator[_Raw]:
    paid = [route for route in task.models if route.partition(":")[0] in ("openai", "anthropic")]
    if paid:
        yield (
            "price-unknown",
            "advice",
            ("spec", "budget"),
            f"no price is known for {paid[0]}: unless the provider reports a cost, budget.usd never binds",
            "bound tokens, turns and wall as well; they bind whatever the price",
        )
    if task.budget.turns > HORIZON_LONG and not any(c.level >= Level.SEALED for c in task.done):
        yield (
            "long-without-seal",
            "warning",
            ("spec", "budget", "turns"),
            f"{task.budget.turns} turns on visible evidence alone (up to {HORIZON_LONG} it is enough)",
            "add a sealed criterion, or lower turns",
        )
    if task.environment.limits.wall_ms > task.budget.wall_ms:
        message = "one action may run longer than the whole budget"
        yield "limit-above-budget", "warning", (*_SANDBOX, "limits"), message, "lower limits.wall or raise budget.wall"


def _environment(task: Task, _: Tier | None) -> Iterator[_Raw]:
    if task.environment.workspace in ("/", "/root", "/home") or re.fullmatch(
        r"/home/[^/]+", task.environment.workspace
    ):
        path = ("spec", "environment", "workspace")
        message = f"the workspace is {task.environment.workspace}, a whole home or system"
        yield "workspace-too-wide", "warning", path, message, "name the project's own folder"
    for index, host in enumerate(task.environment.network):
        name = host.rpartition(":")[0].strip("[]")
        if re.fullmatch(r"[0-9.]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*", name) or name == "localhost":
            path = (*_SANDBOX, "network", index)
            message = f"{host} is an address, not a name: loopback, private and metadata addresses lead into the host"
            yield "network-raw-address", "warning", path, message, "allow a host by its name"


_NESTED_QUANTIFIER: Final = re.compile(r"\((?:[^()\\]|\\.)*[+*](?:[^()\\]|\\.)*\)[+*{]")


def _redaction(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for index, pattern in enumerate(task.observe.redact):
        if _NESTED_QUANTIFIER.search(pattern):
            yield (
                "slow-redaction",
                "warning",
                ("spec", "observe", "redact", index),
                f"{pattern!r} repeats a repetition: some output makes it take exponential time",
                "repeat once, as in \\S+ instead of (\\S+)+",
            )


def _advisory_rules(task: Task, _: Tier | None) -> Iterator[_Raw]:
    for rule in rules_in_words(task):
        if rule.prompt_only:
            yield (
                "rule-in-words-only",
                "warning" if rule.required else "advice",
                ("spec", "goal", "text"),
                f'"{rule.rule[:120]}" is held by nothing but the prompt',
                "write it as goal.forbid, an invariant, or a limit; what stays in words is a wish",
            )

"""A task from a YAML file: strict, positioned, pinned.

``load_task`` either returns a contract in which everything that can be checked without running anything has been
checked, or raises ManifestFault with every problem at its file, line and column. The canonical document is the manifest
with each default filled in and each unit in one spelling; its digest is the identity of the contract, and loading the
dumped document gives the same digest again. Paths stay in it as written, so that a contract keeps its identity when
its folder moves.
"""

from __future__ import annotations

import ast
import difflib
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from setpoint.adapters.verifiers.sealed_files import SealedFilesUnusable, digest_directory
from setpoint.app.document import BYTES_MAX, Document, Path, Problem, parse_documents
from setpoint.app.schema import KINDS, schema
from setpoint.app.validate import WAYS, validate
from setpoint.kernel.contract import (
    ApprovalRule,
    Budget,
    Criterion,
    Environment,
    ExprCheck,
    Goal,
    Invariant,
    Level,
    Limits,
    Mount,
    Observe,
    OracleCheck,
    Policy,
    Predicate,
    ProbeCheck,
    Rate,
    RunCheck,
    Task,
    ToolGrant,
)
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.exposure import BUILTIN_TOOLS, TALKING_TOOLS
from setpoint.kernel.expression import named_variables
from setpoint.kernel.keys import digest
from setpoint.kernel.units import (
    format_duration,
    format_size,
    format_usd,
    parse_duration_ms,
    parse_size,
    parse_usd_micros,
)

STDIN: Final = "-"

_RESERVED: Final = ("/workspace", "/sealed", "/out", "/setpoint", "/proc", "/dev", "/sys")
_SYSTEM: Final = ("/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp")


class ManifestFault(UsageFault):
    """The manifest is invalid; ``problems`` lists everything that is wrong, each with its place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A task, and where each of its parts was written."""

    task: Task
    document: Document

    def locate(self, path: Path) -> tuple[int, int]:
        """1-based line and column of ``path`` or of the nearest part around it that was written."""
        mark = self.document.mark(path)
        return mark.key_line, mark.key_column


def load_task(path: str, *, name: str | None = None, tools: Iterable[str] = BUILTIN_TOOLS) -> Task:
    """The one task of a file, or the one called ``name``. ``-`` is standard input. Raises ManifestFault, UsageFault."""
    tasks = load_tasks(path, tools=tools)
    if name is not None:
        found = next((task for task in tasks if task.name == name), None)
        if found is None:
            raise UsageFault(f"{path} holds no task {name!r}; it holds {_names(tasks)}")
        return found
    if len(tasks) > 1:
        raise UsageFault(f"{path} holds {len(tasks)} tasks: {_names(tasks)}", hint="name the one you mean")
    return tasks[0]


def load_tasks(path: str, *, tools: Iterable[str] = BUILTIN_TOOLS) -> list[Task]:
    """Every task of a file, in its order; at least one."""
    return [manifest.task for manifest in open_manifests(path, tools=tools)]


def open_manifests(path: str, *, tools: Iterable[str] = BUILTIN_TOOLS) -> list[Manifest]:
    """Every task of a file with its positions. All problems of all documents are reported at once."""
    data, source = _read(path)
    file = "<stdin>" if path == STDIN else path
    directory = os.path.dirname(source) if source else os.getcwd()
    return manifests_of(data, file=file, directory=directory, source=source, tools=tools)


def manifests_of(
    data: bytes,
    *,
    file: str,
    directory: str,
    source: str | None = None,
    tools: Iterable[str] = BUILTIN_TOOLS,
    recorded: bool = False,
) -> list[Manifest]:
    """The same from bytes. Relative paths start at ``directory``.

    ``recorded``: the document was accepted once and is read back to be looked at. What it names on this host may have
    gone or changed since; the pinned digests stand as they are written.
    """
    documents, problems = parse_documents(data, file)
    manifests: list[Manifest] = []
    first: dict[str, Document] = {}
    for document in documents:
        wrong = _wrong_kind(document) or validate(document, "Task")
        if wrong or problems:
            problems += wrong
            continue
        builder = _Builder(document, directory, source, frozenset(tools), recorded)
        task = builder.task()
        if task.name in first:
            builder.complain(("metadata", "name"), f"a second task is called {task.name!r} in this file")
        first[task.name] = document
        problems += builder.problems
        manifests.append(Manifest(task, document))
    if problems:
        raise ManifestFault(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return manifests


def dump(task: Task) -> str:
    """The canonical document as YAML; loading it beside the same files gives the same digest."""
    return yaml.safe_dump(task.document, sort_keys=False, allow_unicode=True, width=110)


def _names(tasks: list[Task]) -> str:
    return ", ".join(task.name for task in tasks)


def _read(path: str) -> tuple[bytes, str | None]:
    """The bytes, and the absolute path when they come from a file that relative paths can start at."""
    if path == STDIN:
        return sys.stdin.buffer.read(BYTES_MAX + 1), None
    try:
        with open(path, "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(BYTES_MAX + 1)
    except OSError as fault:
        raise UsageFault(
            f"cannot read the manifest {path}: {fault.strerror}", hint="`setpoint init` writes a commented one"
        ) from fault
    return data, os.path.abspath(path) if is_regular else None


def _wrong_kind(document: Document) -> list[Problem]:
    """A document of another kind gets one message, not a list of everything a task would have."""
    if not isinstance(document.value, dict):
        return [document.problem((), "a manifest is a mapping that starts with apiVersion and kind")]
    kind = document.value.get("kind")
    if kind is None or kind in KINDS:
        return []
    close = difflib.get_close_matches(str(kind), KINDS, n=1, cutoff=0.6)
    advice = f"did you mean {close[0]!r}?" if close else f"known kinds: {', '.join(KINDS)}"
    return [document.problem(("kind",), f"there is no kind {kind!r} in this version", advice)]


# The canonical document.


def normalise(rules: dict[str, Any], value: Any) -> Any:
    """``value`` with each default of its schema filled in and each unit in its canonical spelling.

    Only for values that have passed validation.
    """
    if isinstance(value, dict):
        properties: dict[str, Any] = rules.get("properties", {})
        result: dict[str, Any] = {}
        for key, inner in properties.items():
            if key in value:
                result[key] = normalise(inner, value[key])
            elif "default" in inner:
                result[key] = normalise(inner, inner["default"])
        return result | {key: item for key, item in value.items() if key not in properties}
    if isinstance(value, list):
        return [normalise(rules.get("items", {}), item) for item in value]
    match rules.get("format"):
        case "duration":
            return format_duration(parse_duration_ms(value))
        case "size":
            return format_size(parse_size(value))
        case "usd":
            return format_usd(parse_usd_micros(str(value)))
        case _:
            return value


class _Builder:
    """Builds one task from a validated document; collects what only shows when the parts are seen together."""

    def __init__(
        self, document: Document, directory: str, source: str | None, tools: frozenset[str], recorded: bool = False
    ) -> None:
        self.document = document
        self.directory = directory
        self.source = source
        self.tools = tools
        self.recorded = recorded
        self.problems: list[Problem] = []
        self.sealed: dict[str, Path] = {}  # real path of each sealed directory -> where it was written
        value = dict(document.value)
        value.pop("status", None)
        self._money_as_written(value)
        self.canonical: dict[str, Any] = normalise(schema("Task"), value)

    def _money_as_written(self, value: dict[str, Any]) -> None:
        """The amount as its text: a YAML number would come through a float."""
        path = ("spec", "budget", "usd")
        budget = value["spec"].get("budget")
        if budget and "usd" in budget:
            text = self.document.mark(path).text
            value["spec"] = value["spec"] | {"budget": budget | {"usd": text}}

    def missing(self, path: Path, message: str, suggestion: str = "") -> None:
        """Something on this host is not there, or not as it was: a problem for a task that is to start."""
        if not self.recorded:
            self.complain(path, message, suggestion)

    def complain(self, path: Path, message: str, suggestion: str = "") -> None:
        self.problems.append(self.document.problem(path, message, suggestion))

    def resolve(self, path: str) -> str:
        return os.path.realpath(os.path.join(self.directory, os.path.expanduser(path)))

    def task(self) -> Task:
        """The task; of use only when ``problems`` is empty."""
        spec = self.canonical["spec"]
        environment = self.environment(spec["environment"])
        actions = self.actions(spec["actions"])
        done = tuple(Criterion(**self.check(("spec", "done", index), item)) for index, item in enumerate(spec["done"]))
        invariants = tuple(
            Invariant(severity=item["severity"], **self.check(("spec", "invariants", index), item))
            for index, item in enumerate(spec["invariants"])
        )
        self.unique(("spec", "done"), spec["done"], "id")
        self.unique(("spec", "invariants"), spec["invariants"], "id")
        environment = replace(environment, hidden=self.hidden(environment))
        return Task(
            name=self.canonical["metadata"]["name"],
            goal=Goal(spec["goal"]["text"], tuple(spec["goal"]["forbid"])),
            environment=environment,
            actions=actions,
            observe=Observe(spec["observe"]["max_tokens"], tuple(spec["observe"]["redact"])),
            done=done,
            invariants=invariants,
            budget=_budget(spec["budget"]),
            policy=_policy(spec["policy"]),
            models=tuple(spec["models"]),
            document=self.canonical,
            digest=digest(self.canonical),
            source=self.source,
        )

    # Environment.

    def environment(self, value: dict[str, Any]) -> Environment:
        path = ("spec", "environment")
        workspace = self.resolve(value["workspace"])
        if not os.path.isdir(workspace):
            self.missing((*path, "workspace"), f"there is no directory {workspace}")
        sandbox = value["sandbox"]
        if sandbox["network"] == []:
            sandbox["network"] = "none"  # one spelling of one thing
        network = () if sandbox["network"] == "none" else tuple(sandbox["network"])
        for index, host in enumerate(network):
            if not 1 <= int(host.rpartition(":")[2]) <= 65_535:
                self.complain((*path, "sandbox", "network", index), f"{host!r} has no port between 1 and 65535")
        return Environment(
            workspace=workspace,
            base=value["base"],
            toolchain=tuple(value["toolchain"]),
            mounts=self.mounts((*path, "mounts"), value["mounts"], workspace),
            env=tuple(sorted(value["env"].items())),
            tier=sandbox["tier"],
            network=network,
            limits=_limits(sandbox["limits"]),
        )

    def mounts(self, path: Path, values: list[dict[str, str]], workspace: str) -> tuple[Mount, ...]:
        mounts: list[Mount] = []
        for index, value in enumerate(values):
            here = (*path, index)
            host = self.resolve(value["host"])
            at = os.path.normpath(value.get("at", host))
            if not os.path.exists(host):
                self.missing((*here, "host"), f"there is no {host} on this host")
            if at in _SYSTEM or any(_is_inside(at, reserved) for reserved in _RESERVED):
                self.complain((*here, "at"), f"{at} belongs to the sandbox itself", "mount it elsewhere, as in /vendor")
            if any(mount.at == at for mount in mounts):
                self.complain(here, f"a second mount at {at}")
            if self.source and _is_inside(os.path.realpath(self.source), host):
                self.complain((*here, "host"), f"{host} holds this manifest, which no action may see")
            mounts.append(Mount(host, at))
        return tuple(mounts)

    def hidden(self, environment: Environment) -> tuple[str, ...]:
        """What lies in the workspace and no action may see; complains where a sealed folder cannot be kept apart."""
        workspace = environment.workspace
        for sealed, path in self.sealed.items():
            if _is_inside(workspace, sealed):
                self.complain(path, f"the sealed files in {sealed} hold the workspace itself", "keep them in a folder")
            for mount in environment.mounts:
                if _is_inside(sealed, mount.host) or _is_inside(mount.host, sealed):
                    self.complain(path, f"the mount of {mount.host} would show the sealed files in {sealed}")
        secret = [os.path.realpath(self.source)] if self.source else []
        secret += list(self.sealed)
        inside = {os.path.relpath(item, workspace) for item in secret if _is_inside(item, workspace)}
        return tuple(sorted(inside - {"."}))

    # Actions.

    def actions(self, values: list[dict[str, Any]]) -> tuple[ToolGrant, ...]:
        path = ("spec", "actions")
        self.unique(path, values, "tool")
        grants: list[ToolGrant] = []
        for index, value in enumerate(values):
            tool = value["tool"]
            if tool not in self.tools:
                close = difflib.get_close_matches(tool, sorted(self.tools), n=1, cutoff=0.5)
                known = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(self.tools))}"
                self.complain((*path, index, "tool"), f"there is no tool {tool!r}", known)
            elif "paths" in value and tool in TALKING_TOOLS:
                self.complain((*path, index, "paths"), f"{tool} touches no path", "remove it")
            if "rate" in value and tool in TALKING_TOOLS:
                self.complain((*path, index, "rate"), f"{tool} is never dispatched, so it has no rate", "remove it")
            if value["read_only"] and tool != "shell_exec":
                self.complain(
                    (*path, index, "read_only"), f"read_only applies to shell_exec, not to {tool}", "remove it"
                )
            grants.append(
                ToolGrant(
                    tool=tool,
                    paths=tuple(value["paths"]) if "paths" in value else None,
                    require=tuple(value["require"]),
                    ensure=tuple(value["ensure"]),
                    max_calls=value.get("max_calls"),
                    rate=_rate(value["rate"]) if "rate" in value else None,
                    read_only=value["read_only"],
                )
            )
        return tuple(grants)

    def unique(self, path: Path, values: list[dict[str, Any]], key: str) -> None:
        seen: dict[str, int] = {}
        for index, value in enumerate(values):
            name = value[key]
            if name in seen:
                line = self.document.mark((*path, seen[name], key)).line
                self.complain((*path, index, key), f"{key} {name!r} stands here twice", f"first in line {line}")
            seen.setdefault(name, index)

    # Checks.

    def check(self, path: Path, value: dict[str, Any]) -> dict[str, Any]:
        """The common fields of a criterion and an invariant; pins files and fills the level into the document."""
        way = next(way for way in WAYS if way in value)
        level = self.level(path, value, way)
        value["level"] = level.label
        self.applicable(path, value, way)
        files = self.files(path, value)
        if way == "oracle" and files:
            self.judge(path, value["oracle"], files, level)
        return {
            "id": value["id"],
            "predicate": _predicate(way, value),
            "level": level,
            "files": files,
            "files_digest": value.get("files_digest"),
            "disclose": value["disclose"],
            "weight": value["weight"],
        }

    def level(self, path: Path, value: dict[str, Any], way: str) -> Level:
        """The level asked for, or the one this way of judging gives; complains about one it cannot give."""
        sealed = "files" in value or way == "oracle"
        default = Level.SEALED if sealed else Level.STATIC if way == "expr" else Level.VISIBLE
        if "level" not in value:
            return default
        level = Level.of(value["level"])
        at = (*path, "level")
        if level is Level.PROOF and way == "oracle":
            return level  # `judge` below looks for the declared domain
        if level is Level.PROOF:
            message = f"`{way}` looks at some inputs; a proof looks at every input of a declared finite domain"
            self.complain(at, message, "use an oracle whose judge file declares `domain()`, or the level sealed")
        elif level is Level.SEALED and not sealed:
            self.complain(at, "a sealed check needs `files` that no action can reach", "for example files: ./sealed")
        elif level < Level.SEALED and sealed:
            self.complain(at, f"a check with `files` is sealed, not {level.label}", "remove level or files")
        elif level is Level.VISIBLE and way == "expr" and "state" not in named_variables(value["expr"]):
            message = "an expression over changes alone shows form, not behaviour: its level is static"
            self.complain(at, message, "judge behaviour with run, or speak of state")
        return level

    def applicable(self, path: Path, value: dict[str, Any], way: str) -> None:
        """Keys that belong to another way of judging would be silently without effect."""
        written = self.document.value
        for part in path:
            written = written[part]
        belongs = {
            "parse": ("run",),
            "timeout": ("run", "oracle"),
            "files": ("run", "oracle"),
            "files_digest": ("run", "oracle"),
        }
        for key, ways in belongs.items():
            if key in written and way not in ways:
                self.complain((*path, key), f"`{key}` applies to {' and '.join(ways)}, not to {way}", "remove it")
        if way != "run":
            value.pop("parse")
        if "files_digest" in written and "files" not in written:
            self.complain((*path, "files_digest"), "a digest of files without `files`")
        if way == "oracle" and "files" not in written:
            self.complain((*path, "oracle"), "an oracle needs `files`, the folder it lies in", "as in files: ./sealed")

    def files(self, path: Path, value: dict[str, Any]) -> str | None:
        if "files" not in value:
            return None
        at = (*path, "files")
        directory = self.resolve(value["files"])
        if self.recorded:
            return directory  # the digest is in the document
        if not os.path.isdir(directory):
            what = "is not a directory" if os.path.exists(directory) else "does not exist"
            self.complain(at, f"the folder of sealed files {directory} {what}")
            return directory
        self.sealed.setdefault(directory, at)
        try:
            stray = _link_out(directory)
            if stray:
                advice = "copy the file in: sealed files are mounted alone, and pinned whole"
                self.complain(at, f"the link {stray} leads out of the sealed files", advice)
            pinned = digest_directory(directory)
        except (SealedFilesUnusable, OSError) as fault:
            self.complain(at, str(fault))
            return directory
        wanted = value.setdefault("files_digest", pinned)
        if wanted != pinned:
            message = f"the sealed files have changed: they are {pinned}, the manifest pins {wanted}"
            self.complain((*path, "files_digest"), message)
        return directory

    def judge(self, path: Path, judge: str, files: str, level: Level) -> None:
        """The judge file lies in ``files`` and binds the names its level needs. It is read, never run."""
        at = (*path, "oracle")
        if self.recorded:
            return
        if os.path.isabs(judge) or judge.startswith("..") or os.path.normpath(judge) != judge:
            self.complain(at, f"{judge!r} is not a path inside `files`")
        elif not os.path.isfile(os.path.join(files, judge)):
            self.complain(at, f"there is no file {judge!r} in {files}")
        elif level is Level.PROOF and (unbound := _unbound(os.path.join(files, judge), PROOF_NAMES)):
            self.complain(
                (*path, "level"),
                f"level proof enumerates a declared finite domain, and {judge} binds no {', no '.join(unbound)}",
                "declare call = 'module:function', domain() and judge(arguments, outcome), or use the level sealed",
            )


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _link_out(directory: str) -> str:
    """The first link below ``directory`` that is absolute or leads out of it, or ""."""
    for folder, folders, files in os.walk(directory):
        for name in sorted((*folders, *files)):
            path = os.path.join(folder, name)
            if os.path.islink(path) and (
                os.path.isabs(os.readlink(path)) or not _is_inside(os.path.realpath(path), directory)
            ):
                return path
    return ""


PROOF_NAMES: Final = ("call", "domain", "judge")
"""What a judge file of level proof binds at its top (``adapters/verifiers/exhaustive.py``)."""


def _unbound(path: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that no top-level statement of the Python file binds; all of them when it is no Python."""
    try:
        with open(path, "rb") as file:
            body = ast.parse(file.read()).body
    except (SyntaxError, ValueError):
        return list(names)
    bound: set[str] = set()
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name):
                bound.add(name)
            case ast.Assign(targets=targets):
                bound.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                bound.add(name)
            case ast.ImportFrom(names=imported):
                bound.update(alias.asname or alias.name for alias in imported)
            case _:
                pass
    return [name for name in names if name not in bound]


def _predicate(way: str, value: dict[str, Any]) -> Predicate:
    timeout = parse_duration_ms(value["timeout"]) if "timeout" in value else None
    match way:
        case "run":
            return RunCheck(value["run"], value["parse"], timeout)
        case "expr":
            return ExprCheck(value["expr"])
        case "probe":
            return ProbeCheck(value["probe"])
        case _:
            return OracleCheck(value["oracle"], timeout)


def _rate(value: dict[str, Any]) -> Rate:
    return Rate(value["calls"], parse_duration_ms(value["per"]))


def _limits(value: dict[str, Any]) -> Limits:
    return Limits(
        wall_ms=parse_duration_ms(value["wall"]),
        cpu_ms=parse_duration_ms(value["cpu"]),
        memory_bytes=parse_size(value["memory"]),
        pids=value["pids"],
        output_bytes=parse_size(value["output"]),
        output_kill_bytes=parse_size(value["output_kill"]),
        disk_bytes=parse_size(value["disk"]),
    )


def _budget(value: dict[str, Any]) -> Budget:
    return Budget(
        turns=value["turns"],
        tokens=value["tokens"],
        usd_micros=parse_usd_micros(value["usd"]),
        wall_ms=parse_duration_ms(value["wall"]),
        on_exceed=value["on_exceed"],
    )


def _policy(value: dict[str, Any]) -> Policy:
    return Policy(
        commit=value["commit"],
        stall_after=value["stall_after"],
        on_stall=tuple(value["on_stall"]),
        approve=tuple(
            ApprovalRule(
                rule["when"],
                tuple(rule["by"]),
                rule["quorum"],
                parse_duration_ms(rule["expires"]),
                rule.get("each_role", False),  # a task accepted before it could be written has none
            )
            for rule in value["approve"]
        ),
        drift=value["drift"],
    )

"""The published JSON Schema of every kind of manifest; that of events and plans lies in ``event_schema.py``.

Draft 2020-12. It is the one description of what may be written: the loader validates with it, editors complete with
it, ``explain`` prints it, and a test holds its defaults to those of ``kernel.contract``. ``format`` is an annotation
there; the loader gives it teeth (`manifest.py`), since a schema cannot compile an expression.
"""

from __future__ import annotations

import copy
import difflib
from functools import lru_cache
from typing import Any, Final

from setpoint.kernel.contract import TIERS
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.limits import RATE_CALLS_MAX
from setpoint.kernel.units import DURATION_PATTERN, SIZE_PATTERN, USD_PATTERN

API_VERSION: Final = "setpoint.dev/v1"
KINDS: Final = ("Task",)
"""What a manifest may declare."""
PUBLISHED: Final = (*KINDS, "Event", "Plan")
"""What there is a schema of: manifests, and what the runtime writes out."""
ROUTE_KINDS: Final = ("scripted", "replay", "command", "openai", "anthropic")

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
TOOL_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.:/-]{0,127}$"
HOST_PATTERN: Final = r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$"
DIGEST_PATTERN: Final = r"^sha256:[0-9a-f]{64}$"
COMMIT_PATTERN: Final = r"^[0-9a-f]{7,64}$"
ENV_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"

Schema = dict[str, Any]


_GATE_FACTS: Final = (
    "call has tool, arguments (by their names), path (where it leads; empty for a tool without one) and, of shell_exec "
    "only, blast (normal or high); effect is one of pure, read, reversible, keyed, compensable, irreversible; "
    "trajectory has turn, spent.tokens, spent.usd_micros and savepoint; state has each check's verdict by its id; "
    "changes are what was changed so far, each with its path; baseline is empty here."
)


def schema(kind: str) -> Schema:
    """The JSON Schema of ``kind``, a fresh copy. UsageFault names the known kinds."""
    match kind:
        case "Task":
            return copy.deepcopy(_task())
        case "Event" | "Plan":
            from setpoint.app import event_schema  # validating a manifest needs none of it

            return event_schema.event_schema() if kind == "Event" else event_schema.plan_schema()
        case _:
            close = difflib.get_close_matches(kind, PUBLISHED, n=1, cutoff=0.4)
            hint = f"did you mean {close[0]!r}?" if close else f"known kinds: {', '.join(PUBLISHED)}"
            raise UsageFault(f"there is no kind {kind!r}", hint=hint)


@lru_cache(maxsize=1)
def _task() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://setpoint.dev/schema/v1/task.json",
        "title": "Task",
        **_object(
            "A desired state, and everything that bounds the way there.",
            {
                "apiVersion": {
                    "const": API_VERSION,
                    "description": "The version of this format.",
                    "examples": [API_VERSION],
                },
                "kind": {"const": "Task", "description": "What this document declares.", "examples": ["Task"]},
                "metadata": _object(
                    "How the task is called.",
                    {"name": _name("Name of the task, in lists and in its certificate.", "clamp-negative-timeout")},
                    required=("name",),
                    example={"name": "clamp-negative-timeout"},
                ),
                "spec": _spec(),
                "status": {
                    "description": "Written by the runtime only; refused in a file unless empty.",
                    "oneOf": [
                        {"type": "object", "properties": {}, "additionalProperties": False},
                        {"type": "null"},
                    ],
                    "examples": [{}],
                },
            },
            required=("apiVersion", "kind", "metadata", "spec"),
        ),
    }


def _spec() -> Schema:
    return _object(
        "The contract: five parts (goal, environment, actions, observe, done), and invariants, budget, policy, models.",
        {
            "goal": _goal(),
            "environment": _environment(),
            "actions": {
                "type": "array",
                "description": "Permitted actions, an allow-list: what is absent does not exist for the model.",
                "items": _action(),
                "examples": [[{"tool": "file_read"}, {"tool": "file_edit", "paths": ["src/**"]}]],
            },
            "observe": _observe(),
            "done": {
                "type": "array",
                "description": "Completion criteria: the desired state. All must hold, judged by the runtime.",
                "items": _check("One predicate of the desired state.", _criterion_extras()),
                "examples": [[{"id": "unit", "run": "python -m pytest -q tests"}]],
            },
            "invariants": {
                "type": "array",
                "description": "What must hold at every savepoint and commit.",
                "items": _check("One condition that must hold at every savepoint.", _invariant_extras()),
                "default": [],
                "examples": [[{"id": "tests-untouched", "expr": "!changes.exists(c, c.path.startsWith('tests/'))"}]],
            },
            "budget": _budget(),
            "policy": _policy(),
            "models": _strings(
                "Routes to a model, first to last; the command line may replace them. "
                "Files and programs in a route are relative to this file.",
                {"type": "string", "minLength": 1, "format": "route"},
                example=["scripted:script.yaml"],
                default=[],
            ),
        },
        required=("goal", "environment", "actions", "observe", "done"),
    )


def _goal() -> Schema:
    return _object(
        "The desired end state in words, with what must not be touched on the way.",
        {
            "text": _text(
                "What the model is told. It binds nobody: what must hold is an invariant or forbidden.", 20_000
            )
            | {"examples": ["Negative timeout inputs are clamped to the default 5.0 s."]},
            "forbid": _strings(
                "Negative scope: paths no kept mutation may touch.",
                _glob(),
                example=["tests/**", ".git/**"],
                default=[],
            ),
        },
        required=("text",),
        example={"text": "Negative timeouts are clamped.", "forbid": ["tests/**"]},
    )


def _environment() -> Schema:
    return _object(
        "The reproducible substrate of every action and check.",
        {
            "workspace": _text("The directory to converge, relative to this file.", 4096) | {"examples": ["."]},
            "base": {
                "type": ["string", "null"],
                "pattern": COMMIT_PATTERN,
                "description": "A git commit to start from, in hex, checked out clean; null takes the tree as it is. "
                "A tree that is as desired already needs none.",
                "default": None,
                "examples": ["4f2c91d"],
            },
            "toolchain": _strings(
                "Interpreters shown read-only and first on PATH: python is the one Setpoint runs on.",
                {"enum": ["python"]},
                example=["python"],
                default=["python"],
            ),
            "mounts": {
                "type": "array",
                "description": "Further host folders, shown read-only.",
                "items": _mount(),
                "default": [],
                "examples": [[{"host": "./vendor", "at": "/vendor"}]],
            },
            "env": {
                "type": "object",
                "description": "Variables added to a minimal fixed environment; nothing is inherited.",
                "patternProperties": {ENV_PATTERN: {"type": "string", "maxLength": 32_768}},
                "additionalProperties": False,
                "default": {},
                "examples": [{"PYTHONDONTWRITEBYTECODE": "1"}],
            },
            "sandbox": _sandbox(),
        },
        required=("workspace",),
        example={"workspace": "."},
    )


def _mount() -> Schema:
    return _object(
        "One read-only host path.",
        {
            "host": _text("The host path, relative to this file. It must exist.", 4096) | {"examples": ["./vendor"]},
            "at": _text("Absolute path inside the sandbox; by default the same path as on the host.", 4096)
            | {"pattern": "^/", "examples": ["/vendor"]},
        },
        required=("host",),
        example={"host": "./vendor", "at": "/vendor"},
    )


def _sandbox() -> Schema:
    return _object(
        "The least isolation this task accepts.",
        {
            "tier": _choice("Minimum tier; the task is refused on a machine below it.", TIERS, "namespaces"),
            "network": {
                "description": "none, or the only host:port pairs that can be reached.",
                "oneOf": [
                    {"const": "none"},
                    {"type": "array", "items": {"type": "string", "pattern": HOST_PATTERN}, "uniqueItems": True},
                ],
                "default": "none",
                "examples": ["none", ["pypi.org:443"]],
            },
            "limits": _object(
                "Bounds of each sandboxed action; an action that hits one is ended, and told which.",
                {
                    "wall": _duration("Wall-clock time.", "60s"),
                    "cpu": _duration("CPU time of all its processes.", "60s"),
                    "memory": _size("Memory of all its processes.", "1Gi"),
                    "pids": _count("Processes and threads at a time.", 128, 1, 1_000_000),
                    "output": _size("Kept of each output stream: half head, half tail.", "64Ki"),
                    "output_kill": _size("An action that writes more than this is ended.", "16Mi"),
                    "disk": _size("Staged changes of the workspace.", "1Gi"),
                },
                default={},
            ),
        },
        default={},
    )


def _action() -> Schema:
    return _object(
        "One allowed tool.",
        {
            "tool": {
                "type": "string",
                "pattern": TOOL_PATTERN,
                "description": "Name of a built-in tool or of a registered capability.",
                "examples": ["file_edit"],
            },
            "paths": _strings(
                "Where it may work: judged before a call where the tool names its path, and on what a turn changed. "
                "Without it, the whole workspace but what goal.forbid names.",
                _glob(),
                example=["src/**", "tests/**"],
            ),
            "require": _strings(
                f"Preconditions (CEL), judged before dispatch. {_GATE_FACTS}",
                {"type": "string", "minLength": 1, "format": "cel-call"},
                example=["trajectory.turn < 20"],
                default=[],
            ),
            "ensure": _strings(
                "Postconditions (CEL), judged after dispatch; a broken one rolls the turn back. The same variables but "
                "effect; call has tool, arguments and exit_code, changes what was really changed.",
                {"type": "string", "minLength": 1, "format": "cel-result"},
                example=["size(changes) <= 3"],
                default=[],
            ),
            "read_only": {
                "type": "boolean",
                "description": "For shell_exec: only single commands of a read-only list, such as grep or ls.",
                "default": False,
                "examples": [True],
            },
            "max_calls": _count("Calls over the whole trajectory.", None, 1, 1_000_000) | {"examples": [10]},
            "rate": _object(
                "Calls in any window of the trajectory's active time; one more is refused, with when it is allowed.",
                {
                    "calls": _count("Calls in the window.", None, 1, RATE_CALLS_MAX) | {"examples": [10]},
                    "per": _duration("Length of the window.", "60s"),
                },
                required=("calls",),
                example={"calls": 10, "per": "60s"},
            ),
        },
        required=("tool",),
        example={"tool": "file_edit", "paths": ["src/**"]},
    )


def _observe() -> Schema:
    return _object(
        "What the model may see of results, and how much.",
        {
            "max_tokens": _count("Of one observation in a prompt.", 4000, 1, 1_000_000),
            "redact": _strings(
                "Regular expressions; what they match in tool output, check results and file copies is blanked before "
                "it is logged or shown. What the model itself writes is logged as it is.",
                {"type": "string", "minLength": 1, "maxLength": 1000, "format": "regex"},
                example=["(?i)api[_-]?key\\s*[:=]\\s*\\S+"],
                default=[],
            ),
        },
        example={"max_tokens": 4000},
    )


def _check(description: str, extras: Schema) -> Schema:
    ways = ("run", "expr", "probe", "oracle")
    return {
        **_object(
            description + " Exactly one of run, expr, probe, oracle says how it is judged.",
            {
                "id": _name("Its name, unique in its list; the address in deltas, evidence and messages.", "unit"),
                "run": _text("A command, run by `sh -c` in the candidate state; exit 0 is met.", 10_000)
                | {"examples": ["python -m pytest -q tests"]},
                "expr": {
                    "type": "string",
                    "minLength": 1,
                    "format": "cel-check",
                    "description": "CEL over changes, state, baseline, trajectory; must be true. An error is unmet. "
                    "That nothing else changed is said with `changes.all`: every change is one of those asked for.",
                    "examples": [
                        "!changes.exists(c, c.path.startsWith('tests/'))",
                        "changes.all(c, c.path == 'orders/17.json' && c.kind == 'modified')",
                        "changes.all(c, c.path == 'orders.json' && c.lines_added == 1 && c.lines_removed == 1)",
                    ],
                },
                "probe": {
                    "type": "string",
                    "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
                    "description": "A registered Python function of the host, module:function.",
                    "examples": ["shop.probes:ledger_balanced"],
                },
                "oracle": _text(
                    "A judge in `files` that never imports the candidate: it names calls, the runtime runs them in a "
                    "candidate sandbox, and the judge compares the values in one of its own. At level proof it "
                    "declares call, domain() and judge(arguments, outcome), and the runtime runs the whole domain.",
                    4096,
                )
                | {"examples": ["judge.py"]},
                "level": {
                    "enum": ["static", "visible", "sealed", "proof"],
                    "description": "Evidence this check gives and its acceptance needs. By default: sealed with "
                    "`files` or `oracle`, visible for run and probe, static for expr. proof: an oracle whose judge "
                    "file declares a finite domain; every input of it is run, and the proof holds over the declared "
                    "finite domain, nothing else.",
                    "examples": ["sealed"],
                },
                "files": _text(
                    "Directory of the check's own files, relative to this file; read-only at $SEALED, out of reach "
                    "of every action. Its digest is pinned when the task is accepted.",
                    4096,
                )
                | {"examples": ["./sealed"]},
                "files_digest": {
                    "type": "string",
                    "pattern": DIGEST_PATTERN,
                    "description": "Digest `files` must have; without it, the one found at acceptance is pinned.",
                    "examples": ["sha256:" + "0" * 64],
                },
                "parse": _choice(
                    "How the outcome of `run` is read. exit: 0 passes. pytest: the runtime adds its own report option. "
                    "junit: the command writes $OUT/junit.xml. tap: TAP 13 or 14 on standard output. json: "
                    "$OUT/report.json or the last line of standard output, "
                    '{"passed": 3, "failed": 1, "failures": [{"name": "n", "message": "m"}]}.',
                    ("pytest", "junit", "exit", "tap", "json"),
                    "exit",
                ),
                "timeout": {
                    "type": "string",
                    "pattern": DURATION_PATTERN,
                    "format": "duration",
                    "description": "Wall-clock bound of this check; by default environment.sandbox.limits.wall.",
                    "examples": ["120s"],
                },
                "weight": _count("Factor of its distance in the soft debt.", 1, 1, 1_000_000),
                **extras,
            },
            required=("id",),
            example={"id": "unit", "run": "python -m pytest -q tests"},
        ),
        "oneOf": [{"required": [way]} for way in ways],
    }


_DISCLOSURES: Final = ("none", "verdict", "names", "full")


def _criterion_extras() -> Schema:
    return {"disclose": _choice("How much of a failure may reach a prompt.", _DISCLOSURES, "names")}


def _invariant_extras() -> Schema:
    return {
        "severity": _choice("hard: a break rolls back; soft: it counts as debt.", ("hard", "soft"), "hard"),
        "disclose": _choice("How much of a failure may reach a prompt.", _DISCLOSURES, "full"),
    }


def _budget() -> Schema:
    return _object(
        "Ceilings of the whole trajectory; there is no way to have none.",
        {
            "turns": _count("Turns, refused ones included.", 30, 1, 1_000_000),
            "tokens": _count("Input and output tokens, as the provider reports them.", 200_000, 1, 10**12),
            "usd": {
                "description": "Money, in dollars; exact to a micro-dollar. A quoted decimal is read the same.",
                "oneOf": [
                    {"type": "number", "minimum": 0, "exclusiveMaximum": 10**9},
                    {"type": "string", "pattern": USD_PATTERN},
                ],
                "format": "usd",
                "default": 2.0,
                "examples": [2.0],
            },
            "wall": _duration("Wall-clock time, without waits for people, rate limits and timers.", "20m"),
            "on_exceed": _choice("At a ceiling: fail, or pause for a person to raise it.", ("fail", "pause"), "fail"),
        },
        default={},
    )


def _policy() -> Schema:
    return _object(
        "How the loop behaves.",
        {
            "commit": _choice(
                "converged: only a state that meets everything becomes the user's; progress: any that is nearer.",
                ("converged", "progress"),
                "converged",
            ),
            "stall_after": _count("Savepoints without progress before the loop goes another way.", 4, 1, 1000),
            "on_stall": _strings(
                "What is tried then, in order. narrow has no effect in this release: it is passed over.",
                {"enum": ["next_model", "narrow", "ask"]},
                example=["next_model", "narrow", "ask"],
                default=["next_model"],
            ),
            "approve": {
                "type": "array",
                "description": "Calls that wait for people of the roster, each on a ticket of its own.",
                "items": _approval(),
                "default": [],
                "examples": [[{"when": "effect == 'irreversible'", "by": ["ops"], "quorum": 1, "expires": "24h"}]],
            },
            "drift": _choice(
                "When a converged state has moved: report it, propose a way back, or go back. In this release it is "
                "only reported, by `setpoint diff`, whatever stands here.",
                ("detect", "propose", "heal"),
                "detect",
            ),
        },
        default={},
    )


def _approval() -> Schema:
    return _object(
        "One rule of who must say yes to what.",
        {
            "when": {
                "type": "string",
                "minLength": 1,
                "format": "cel-call",
                "description": f"Which calls (CEL); a call waits unless it is false, so an error waits. {_GATE_FACTS}",
                "examples": ["effect == 'irreversible'"],
            },
            "by": _strings(
                "Roles of the roster whose people may say yes or no.",
                {"type": "string", "minLength": 1},
                example=["ops"],
            )
            | {"minItems": 1},
            "quorum": _count("How many different people must say yes.", 1, 1, 100),
            "each_role": {
                "type": "boolean",
                "description": "Every role of `by` must be among them, each by another person.",
                "default": False,
                "examples": [True],
            },
            "expires": _duration("After this, silence is a no.", "24h"),
        },
        required=("when", "by"),
        example={"when": "effect == 'irreversible'", "by": ["ops"]},
    )


# Small pieces.


def _object(
    description: str,
    properties: Schema,
    *,
    required: tuple[str, ...] = (),
    example: Any = None,
    default: Any = None,
) -> Schema:
    found: Schema = {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    if default is not None:
        found["default"] = default
    if example is not None:
        found["examples"] = [example]
    return found


def _strings(description: str, items: Schema, *, example: list[str], default: list[str] | None = None) -> Schema:
    found: Schema = {
        "type": "array",
        "description": description,
        "items": items,
        "uniqueItems": True,
        "examples": [example],
    }
    return found if default is None else found | {"default": default}


def _text(description: str, longest: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest, "description": description}


def _name(description: str, example: str) -> Schema:
    return {"type": "string", "pattern": ID_PATTERN, "description": description, "examples": [example]}


def _glob() -> Schema:
    return {"type": "string", "minLength": 1, "format": "glob"}


def _choice(description: str, values: tuple[str, ...], default: str) -> Schema:
    return {"enum": list(values), "description": description, "default": default, "examples": [default]}


def _count(description: str, default: int | None, least: int, most: int) -> Schema:
    found: Schema = {"type": "integer", "minimum": least, "maximum": most, "description": description}
    return found if default is None else found | {"default": default, "examples": [default]}


def _duration(description: str, default: str) -> Schema:
    return {
        "type": "string",
        "pattern": DURATION_PATTERN,
        "format": "duration",
        "description": description,
        "default": default,
        "examples": [default],
    }


def _size(description: str, default: str) -> Schema:
    return {
        "type": "string",
        "pattern": SIZE_PATTERN,
        "format": "size",
        "description": description,
        "default": default,
        "examples": [default],
    }

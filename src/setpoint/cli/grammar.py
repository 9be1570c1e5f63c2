"""The verbs: their words, their arguments, and which module does them. Importing this imports no runtime.

A test holds this table to the command line that is promised, and another that `setpoint --help` loads nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from setpoint.kernel.errors import UsageFault

EXIT_CODES: Final = {
    0: "converged, or nothing to do",
    1: "unexpected",
    2: "usage, or an invalid manifest",
    10: "delta present (with --detailed-exitcode)",
    11: "stalled, or failed to converge",
    12: "refused by policy, invariant or missing closure",
    13: "waiting for a person",
    14: "budget exhausted",
    15: "conflict, or a stale plan",
    16: "outcome of an effect unknown",
    17: "drift",
    18: "evidence missing",
    19: "certificate or log fails verification",
}
DEFAULT_FILES: Final = ("task.yaml", "setpoint.yaml")


class Parser(argparse.ArgumentParser):
    """argparse with the words of this program: faults instead of exits, and the nearest name for a wrong one."""

    def __init__(self, prog: str, description: str, examples: Iterable[str] = ()) -> None:
        listed = "\n".join(f"  {example}" for example in examples)
        super().__init__(
            prog,
            description=description,
            epilog=f"examples:\n{listed}" if listed else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageFault(message, hint=f"`{self.prog} --help` shows what it takes.")

    def read(self, words: list[str]) -> argparse.Namespace:
        """Parse ``words`` whole. UsageFault names what is wrong."""
        arguments, unknown = self.parse_known_args(words)
        if not unknown:
            return arguments
        word = unknown[0]
        known = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word.partition("=")[0], known, 1, 0.5) if word.startswith("-") else []
        if near:
            raise UsageFault(f"{self.prog} takes no {word}; did you mean {near[0]}?")
        raise UsageFault(f"{self.prog} takes no {word!r}", hint=f"`{self.prog} --help` shows what it takes.")


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb. ``doer`` is ``module:function`` below ``setpoint.cli``, imported only when the verb is used."""

    name: str
    group: str
    summary: str
    doer: str
    declare: Callable[[Parser], None]
    examples: tuple[str, ...] = ()

    def parser(self) -> Parser:
        parser = Parser(f"setpoint {self.name}", self.summary[0].upper() + self.summary[1:] + ".", self.examples)
        self.declare(parser)
        parser.add_argument("--store", metavar="URL", help="the log (default: SETPOINT_STORE, else SQLite at home)")
        return parser


# Arguments that several verbs take.


def _file(parser: Parser) -> None:
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="the task file; - is stdin (default: ./task.yaml or ./setpoint.yaml)"
    )


def _task(parser: Parser) -> None:
    _file(parser)
    parser.add_argument("--task", metavar="NAME", help="which task, when the file holds several")


def _models(parser: Parser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        metavar="ROUTE",
        help="use this route instead of the task's (KIND:WHAT; may be repeated; files are relative to this directory)",
    )


def _json(what: str = "one JSON document instead of text") -> Callable[[Parser], None]:
    return lambda parser: _flag(parser, "--json", what)


def _flag(parser: Parser, name: str, what: str) -> None:
    parser.add_argument(name, action="store_true", help=what)


def _id(parser: Parser) -> None:
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="trajectory, or the unique start of its id (default: the newest)"
    )


def _all(*parts: Callable[[Parser], None]) -> Callable[[Parser], None]:
    def declare(parser: Parser) -> None:
        for part in parts:
            part(parser)

    return declare


_EVENTS: Final = _json("one event envelope a line instead of text")
_DOCUMENT: Final = _json()


def _detailed(parser: Parser) -> None:
    _flag(parser, "--detailed-exitcode", "exit 10 when a delta is present")


# Arguments of single verbs.


def _demo(parser: Parser) -> None:
    parser.add_argument("story", nargs="?", default="parse-timeout", metavar="STORY", type=_story, help="parse-timeout")
    _flag(parser, "--open-loop", "only the counter-run without a runtime: what the model claims is believed")
    parser.add_argument("--turn", type=int, metavar="K", help="show one turn of the story: 0, 1 or 2")
    parser.add_argument("--workdir", metavar="DIR", help="play it there and leave it there")


def _story(name: str) -> str:
    if name in ABSENT_STORIES:
        raise UsageFault(f"`demo {name}` is not in this release", hint="`setpoint demo` plays parse-timeout.")
    if name != "parse-timeout":
        raise UsageFault(f"there is no story {name!r}", hint="`setpoint demo` plays parse-timeout.")
    return name


def _staged(parser: Parser) -> None:
    _flag(parser, "--staged", "instead: what trajectory ID has staged and not committed, as a unified diff")
    _id(parser)


def _init(parser: Parser) -> None:
    parser.add_argument("-o", "--output", default="task.yaml", metavar="FILE", help="default: task.yaml; - is stdout")
    parser.add_argument("--name", metavar="NAME", help="name of the task (default: of the directory)")


def _schema(parser: Parser) -> None:
    parser.add_argument("kind", nargs="?", default="Task", metavar="KIND", help="Task (default), Event or Plan")


def _lint(parser: Parser) -> None:
    _flag(parser, "--closure", "also list each rule with what enforces it; exit 12 when only words hold a required one")


def _explain(parser: Parser) -> None:
    parser.add_argument("path", metavar="KIND.path", help="for example Task.spec.budget; or: tools")


def _plan(parser: Parser) -> None:
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the plan there, for `setpoint apply`; - is stdout"
    )


def _apply(parser: Parser) -> None:
    parser.add_argument("plan", metavar="FILE", help="a plan; - is stdin")


def _converge(parser: Parser) -> None:
    _flag(parser, "--watch", "not in this release")


def _get(parser: Parser) -> None:
    parser.add_argument("-n", "--limit", type=int, default=50, metavar="N", help="of the newest (default: 50; 0: all)")


def _events(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new events until the trajectory ends")
    parser.add_argument("--after", type=int, default=0, metavar="SEQ", help="only events after this one")
    parser.add_argument("--type", action="append", metavar="T", help="only events of this type (may be repeated)")


def _trace(parser: Parser) -> None:
    _flag(parser, "--graph", "a Mermaid graph instead of a tree")


def _show(parser: Parser) -> None:
    parser.add_argument("--turn", type=int, required=True, metavar="K", help="the turn to look at; 0 is the baseline")
    _flag(parser, "--prompt", "what the model saw in that turn, rebuilt and compared with its recorded digest")


def _top(parser: Parser) -> None:
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")


def _rollback(parser: Parser) -> None:
    parser.add_argument("--to", type=int, required=True, metavar="K", help="the savepoint to go back to; 0 is the base")


def _fork(parser: Parser) -> None:
    parser.add_argument("--turn", type=int, required=True, metavar="K", help="live again from the end of this turn")
    _flag(parser, "--resume", "go on at once instead of leaving that to `setpoint resume`")


def _replay(parser: Parser) -> None:
    _flag(parser, "--strict", "exit 19 at the first difference (this is the only way of replay; the flag says so)")


def _more(parser: Parser) -> None:
    parser.add_argument("--more-turns", type=int, metavar="N", help="allow N turns more than before")
    parser.add_argument("--more-tokens", type=int, metavar="N", help="allow N tokens more")
    parser.add_argument("--more-usd", metavar="USD", help="allow that many dollars more, e.g. 1.50")
    parser.add_argument("--more-wall", metavar="TIME", help="allow that much more wall clock, e.g. 10m")


def _answer(parser: Parser) -> None:
    parser.add_argument("words", nargs="+", metavar="[ID] TEXT", help="the answer, as one word of the shell")


def _reason(parser: Parser) -> None:
    parser.add_argument("--reason", default="", metavar="TEXT", help="recorded with the request")


def _export(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="default: stdout")
    parser.add_argument("--key-out", metavar="PEM", help="also write the public key a verifier needs")


def _verify(parser: Parser) -> None:
    parser.add_argument("certificate", metavar="FILE", help="the certificate; - is stdin")
    parser.add_argument(
        "--key", action="append", metavar="PUB.pem", help="public key to trust (default: this installation's)"
    )
    parser.add_argument("--task", metavar="FILE", help="the task file it has to be about")
    parser.add_argument("--workspace", metavar="DIR", help="compare this directory with the certified state")


def _doctor(parser: Parser) -> None:
    _flag(parser, "--fresh", "probe again instead of trusting this boot's answer")


WRITING, RUNNING, LOOKING = "write a task", "pursue it", "look"
PAST, PEOPLE, EVIDENCE, MACHINE = "time", "people", "evidence", "this machine"

VERBS: Final = (
    Verb("demo", MACHINE, "the offline tour: a liar, a rollback, a certificate", "demo:run", _demo),
    Verb("doctor", MACHINE, "what this machine can isolate, and what is missing", "machine:doctor",
         _all(_doctor, _DOCUMENT)),
    Verb("init", WRITING, "write a commented task to start from", "writing:init", _init,
         ("setpoint init", "setpoint init -o fix.yaml --name fix")),
    Verb("schema", WRITING, "the JSON Schema of a kind", "writing:schema", _schema,
         ("setpoint schema Task > task.schema.json",)),
    Verb("validate", WRITING, "check a task file without running anything", "writing:validate",
         _all(_file, _DOCUMENT), ("setpoint validate -f task.yaml",)),
    Verb("lint", WRITING, "name what is weak about a valid task", "writing:lint", _all(_task, _lint, _DOCUMENT),
         ("setpoint lint -f task.yaml --closure",)),
    Verb("explain", WRITING, "what a field means", "writing:explain", _explain,
         ("setpoint explain Task.spec.budget", "setpoint explain tools")),
    Verb("diff", RUNNING, "the delta of the workspace as it is; no model is asked", "running:diff",
         _all(_task, _detailed, _staged, _DOCUMENT),
         ("setpoint diff -f task.yaml --detailed-exitcode", "setpoint diff --staged")),
    Verb("plan", RUNNING, "one proposal, judged, with no write", "running:plan",
         _all(_task, _models, _plan, _detailed, _DOCUMENT), ("setpoint plan -f task.yaml -o fix.plan",)),
    Verb("apply", RUNNING, "exactly that plan, if its base still stands", "running:apply", _all(_apply, _EVENTS),
         ("setpoint apply fix.plan",)),
    Verb("converge", RUNNING, "loop until the delta is zero or a bound is reached", "running:converge",
         _all(_task, _models, _converge, _EVENTS),
         ("setpoint converge -f task.yaml", "setpoint converge -f task.yaml --model anthropic:claude-sonnet-4-5")),
    Verb("get", LOOKING, "list trajectories, or one with its conditions", "looking:get", _all(_id, _get, _DOCUMENT)),
    Verb("describe", LOOKING, "everything known of a trajectory", "looking:describe", _all(_id, _DOCUMENT)),
    Verb("why", LOOKING, "why it is not done, or on what evidence it is", "looking:why", _all(_id, _DOCUMENT)),
    Verb("events", LOOKING, "the log", "looking:events", _all(_id, _events, _EVENTS),
         ("setpoint events --json > trajectory.jsonl", "setpoint events -f --type DeltaMeasured")),
    Verb("trace", LOOKING, "what led to what", "looking:trace", _all(_id, _trace, _DOCUMENT)),
    Verb("show", LOOKING, "one past turn: proposal, rulings, results, state", "looking:show",
         _all(_id, _show, _DOCUMENT), ("setpoint show --turn 2", "setpoint show --turn 2 --prompt")),
    Verb("top", LOOKING, "the live trajectories", "looking:top", _all(_top, _DOCUMENT)),
    Verb("resume", PAST, "take a trajectory up where its log ends", "past:resume", _all(_id, _more, _EVENTS)),
    Verb("recover", PAST, "resume everything that lost its worker", "past:recover", _DOCUMENT),
    Verb("undo", PAST, "restore what was there before its commit", "past:undo", _all(_id, _DOCUMENT)),
    Verb("rollback", PAST, "back to a savepoint", "past:rollback", _all(_id, _rollback, _DOCUMENT)),
    Verb("fork", PAST, "a new trajectory from the end of a past turn", "past:fork",
         _all(_id, _fork, _models, _DOCUMENT)),
    Verb("replay", PAST, "make every decision again and compare", "past:replay", _all(_id, _replay, _DOCUMENT)),
    Verb("answer", PEOPLE, "answer what a trajectory asked, or tell it something", "people:answer",
         _all(_answer, _DOCUMENT),
         ('setpoint answer "keep the old default"', 'setpoint answer tr-01h "yes"')),
    Verb("pause", PEOPLE, "stop at the next turn boundary", "people:pause", _all(_id, _reason, _DOCUMENT)),
    Verb("cancel", PEOPLE, "end at the next turn boundary", "people:cancel", _all(_id, _reason, _DOCUMENT)),
    Verb("kill", PEOPLE, "end now, with everything it runs", "people:kill", _all(_id, _reason, _DOCUMENT)),
    Verb("certificate show", EVIDENCE, "what a trajectory was certified for", "certificates:show",
         _all(_id, _DOCUMENT)),
    Verb("certificate export", EVIDENCE, "the certificate as a file anyone can recheck", "certificates:export",
         _all(_id, _export), ("setpoint certificate export -o fix.cert.json --key-out setpoint.pub.pem",)),
    Verb("certificate verify", EVIDENCE, "recheck a certificate offline", "certificates:verify",
         _all(_verify, _DOCUMENT), ("setpoint certificate verify fix.cert.json --key setpoint.pub.pem",)),
)  # fmt: skip

ABSENT: Final = {
    "effects list": "outside effects",
    "effects settle": "outside effects",
    "approvals": "signed approvals; what a rule holds for a person is refused",
    "approve": "signed approvals; what a rule holds for a person is refused",
    "deny": "signed approvals; what a rule holds for a person is refused",
    "wrap": "agent programs as proposers; `--model command:PROGRAM` speaks JSON lines already",
    "run": "workflows",
    "serve": "the server",
    "worker": "detached workers",
    "mcp": "MCP",
    "goodput": "economics",
    "cost": "economics",
    "report": "economics",
    "calc": "planning",
    "sim": "planning",
    "place": "planning",
    "conformance": "the conformance suite as a command",
}
"""Verbs that are promised for later: they say so and exit 2, and never pretend."""
ABSENT_STORIES: Final = ("refund", "drift")

_GROUPS: Final = (WRITING, RUNNING, LOOKING, PAST, PEOPLE, EVIDENCE, MACHINE)


def find_verb(words: list[str]) -> tuple[Verb, list[str]]:
    """The verb ``words`` begin with, and the words after it. UsageFault names the nearest verb."""
    for length in (2, 1):
        name = " ".join(words[:length])
        for verb in VERBS:
            if verb.name == name and len(words) >= length:
                return verb, words[length:]
    first = words[0]
    for name, lacking in ABSENT.items():
        if name.split()[0] == first:
            raise UsageFault(f"`{first}` is not in this release ({lacking})")
    longer = [verb.name.partition(" ")[2] for verb in VERBS if verb.name.startswith(first + " ")]
    if longer:
        said = f"there is no `{first} {words[1]}`" if len(words) > 1 else f"`{first}` needs to know what"
        raise UsageFault(said, hint=f"It is one of: {', '.join(f'setpoint {first} {rest}' for rest in longer)}")
    known = sorted({verb.name.split()[0] for verb in VERBS})
    near = difflib.get_close_matches(first, known, 1, 0.5)
    hint = f"Did you mean `setpoint {near[0]}`?" if near else "`setpoint --help` lists the verbs."
    raise UsageFault(f"there is no verb {first!r}", hint=hint)


def help_text() -> str:
    """The whole command line on one page."""
    lines = [
        "usage: setpoint [--store URL] VERB [arguments]",
        "",
        "Bring a workspace to a declared state with a model nobody has to trust: every change is ruled on,",
        "run in a sandbox, judged by checks out of the model's reach, and kept only on evidence.",
    ]
    width = max(len(verb.name) for verb in VERBS)
    for group in _GROUPS:
        lines += ["", f"{group}:"]
        lines += [f"  {verb.name.ljust(width)}  {verb.summary}" for verb in VERBS if verb.group == group]
    lines += ["", "not in this release:"]
    names = dict.fromkeys(name.split()[0] for name in ABSENT)
    lines += textwrap.wrap(
        f"{', '.join(names)}, converge --watch, demo refund, demo drift",
        100,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    lines += ["", "exit codes:"]
    lines += [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    lines += ["  128+n  ended by signal n"]
    lines += ["", "`setpoint VERB --help` shows arguments. stdout is data, stderr is talk; --json is for programs."]
    return "\n".join(lines)

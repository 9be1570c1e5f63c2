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


def _any_id(parser: Parser) -> None:
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="trajectory or run, or the unique start of its id (default: the newest)"
    )


def _app(parser: Parser) -> None:
    parser.add_argument(
        "--app",
        metavar="APP",
        help="the application: module:attribute or path/to/file.py:attribute "
        "(default: SETPOINT_APP, else [tool.setpoint] app of ./pyproject.toml)",
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
    parser.add_argument(
        "story",
        nargs="?",
        default="parse-timeout",
        metavar="STORY",
        type=_story,
        help="parse-timeout (default) or refund",
    )
    _flag(parser, "--open-loop", "only the counter-run without a runtime: what the model claims is believed")
    parser.add_argument("--turn", type=int, metavar="K", help="show one turn of parse-timeout: 0, 1 or 2")
    parser.add_argument(
        "--order", metavar="ID", help="of refund: only the refund of this order; `late` is one past its time"
    )
    parser.add_argument("--workdir", metavar="DIR", help="play it there and leave it there")


def _story(name: str) -> str:
    if name in ABSENT_STORIES:
        raise UsageFault(
            f"`demo {name}` is not in this release", hint=f"`setpoint demo` plays {' and '.join(STORIES)}."
        )
    if name not in STORIES:
        raise UsageFault(f"there is no story {name!r}", hint=f"`setpoint demo` plays {' and '.join(STORIES)}.")
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
    parser.add_argument("path", metavar="KIND.path", help="for example Task.spec.budget; or: tools; or: workflow")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the workflow: what it may do, proved")
    _flag(parser, "--mermaid", "of a workflow: its picture for a Markdown page, instead of the text")
    parser.add_argument("--svg", metavar="FILE", help="of a workflow: its picture as a file; - is stdout")
    _app(parser)


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
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new events until it ends")
    parser.add_argument("--after", type=int, default=0, metavar="SEQ", help="only events after this one")
    parser.add_argument("--type", action="append", metavar="T", help="only events of this type (may be repeated)")


def _trace(parser: Parser) -> None:
    _flag(parser, "--graph", "a Mermaid graph instead of a tree")


def _show(parser: Parser) -> None:
    parser.add_argument(
        "--turn",
        type=int,
        required=True,
        metavar="K",
        help="the turn of a trajectory, or the step of a run; 0 is before",
    )
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


# Runs of workflows


def _run(parser: Parser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", help="its name; the newest version is started")
    parser.add_argument("--input", default="{}", metavar="JSON", help="the input: JSON, @FILE, or - for stdin")
    parser.add_argument("--id", metavar="RUN", help="an id of your own: the same id again is the same run again")
    parser.add_argument(
        "--as", dest="principal", metavar="PRINCIPAL", help="on whose behalf; who asks never approves (default: you)"
    )
    parser.add_argument("--scope", action="append", metavar="S", help="a right the run holds (may be repeated)")
    _app(parser)


def _worker(parser: Parser) -> None:
    _app(parser)
    _flag(parser, "--until-idle", "end when nothing is due")
    parser.add_argument("--at-once", type=int, default=64, metavar="N", help="runs worked on at a time (default: 64)")
    parser.add_argument(
        "--grace", default="10s", metavar="TIME", help="after a signal, how long what is under way may take to rest"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say what every node did")


def _signal(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run, or the unique start of its id")
    parser.add_argument("name", metavar="NAME", help="the signal, as its workflow names it")
    parser.add_argument("--payload", metavar="JSON", help="what comes with it: JSON, @FILE, or - for stdin")
    parser.add_argument("--key", metavar="K", help="of this message: sent again under the same key, it counts once")


def _migrate(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run to move to the newest version of its workflow")
    _flag(parser, "--dry-run", "say what would become of RUN, or of every run that is not over")
    _app(parser)


def _effects_list(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--open", action="store_true", help="only those that are not settled")
    which.add_argument("--all", action="store_true", help="also those of runs that are over")


def _effects_settle(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", help="of the effect, or CAPABILITY:KEY")
    verdict = parser.add_mutually_exclusive_group(required=True)
    verdict.add_argument("--happened", action="store_true", help="the other side has it")
    verdict.add_argument("--not-happened", action="store_true", help="the other side surely does not have it")
    parser.add_argument("--result", metavar="JSON", help="its receipt: JSON, @FILE, or - for stdin")
    parser.add_argument("--run", metavar="RUN", help="which run's, when several have one of that key")
    _reason(parser)


# Approvals


def _approvals(parser: Parser) -> None:
    parser.add_argument("id", nargs="?", metavar="TICKET", help="show everything of this one")
    _app(parser)


def _decide(parser: Parser) -> None:
    parser.add_argument("ticket", metavar="TICKET", help="the ticket, or the unique start of its id")
    parser.add_argument("--as", dest="principal", metavar="NAME", help="who decides (default: whose key it is)")
    parser.add_argument(
        "--key", metavar="FILE", help="sign with this key, an SSH key for example (default: this installation's own)"
    )
    _reason(parser)
    _app(parser)


def _approvers_add(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="as they would be named as a requester")
    parser.add_argument("--role", action="append", required=True, metavar="R", help="may be repeated")
    parser.add_argument("--key", metavar="PUB", help="a .pub file or its line (default: this installation's own key)")


def _approvers_remove(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="as the roster has it")
    parser.add_argument("--key", metavar="PUB", help="only the entry with this key, a .pub file or its line")


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
    parser.add_argument(
        "--approvers", metavar="FILE", help="the people whose approvals count, in JSON: `setpoint approvers --json`"
    )


def _doctor(parser: Parser) -> None:
    _flag(parser, "--fresh", "probe again instead of trusting this boot's answer")


WRITING, RUNNING, WORKFLOWS, LOOKING = "write a task", "pursue it", "run workflows", "look"
PAST, PEOPLE, EVIDENCE, MACHINE = "time", "people", "evidence", "this machine"

VERBS: Final = (
    Verb("demo", MACHINE, "the offline tour: a liar, a rollback, a certificate; `demo refund`: a bank, a crash, a yes",
         "demo:run", _demo, ("setpoint demo", "setpoint demo refund")),
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
    Verb("explain", WRITING, "what a field means, or what a workflow may do", "writing:explain",
         _all(_explain, _json("of a workflow: one JSON document instead of text")),
         ("setpoint explain Task.spec.budget", "setpoint explain tools",
          "setpoint explain workflow refund --app shop:app --svg refund.svg")),
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
    Verb("run", WORKFLOWS, "start a workflow and work on it until it ends or waits", "runs:run", _all(_run, _EVENTS),
         ("setpoint run refund --app shop.py:app --input '{\"order_id\": \"A-1\"}'",
          "setpoint run refund --input @order.json --id order-17 --as customer:17")),
    Verb("worker", WORKFLOWS, "work on every run that is due, until a signal", "working:worker", _all(_worker, _EVENTS),
         ("setpoint worker --app shop:app", "setpoint worker --app shop:app --until-idle")),
    Verb("signal", WORKFLOWS, "tell a run what it waits for", "telling:signal", _all(_signal, _DOCUMENT),
         ("setpoint signal rn-01h paid --payload '{\"cents\": 500}' --key payment-9",)),
    Verb("effects list", WORKFLOWS, "outside effects of all runs, and what is known of each", "effecting:effects_list",
         _all(_effects_list, _DOCUMENT), ("setpoint effects list --open",)),
    Verb("effects settle", WORKFLOWS, "say what became of an effect that nobody could tell", "effecting:settle",
         _all(_effects_settle, _DOCUMENT),
         ("setpoint effects settle refund:A-1 --happened --result '{\"id\": \"r-7\"}'",
          "setpoint effects settle refund:A-1 --not-happened --reason 'not in the ledger'")),
    Verb("migrate", WORKFLOWS, "move a run to the newest version of its workflow", "workflows:migrate",
         _all(_migrate, _DOCUMENT), ("setpoint migrate --dry-run --app shop:app",)),
    Verb("get", LOOKING, "list trajectories and runs, or one of them", "listing:get",
         _all(_any_id, _get, _DOCUMENT)),
    Verb("describe", LOOKING, "everything known of one", "looking:describe", _all(_any_id, _DOCUMENT)),
    Verb("why", LOOKING, "why it is not done, or on what evidence it is", "looking:why", _all(_any_id, _DOCUMENT)),
    Verb("events", LOOKING, "the log", "looking:events", _all(_any_id, _events, _EVENTS),
         ("setpoint events --json > trajectory.jsonl", "setpoint events -f --type DeltaMeasured")),
    Verb("trace", LOOKING, "what led to what", "looking:trace", _all(_any_id, _trace, _DOCUMENT)),
    Verb("show", LOOKING, "one past turn: proposal, rulings, results, state", "looking:show",
         _all(_any_id, _show, _DOCUMENT), ("setpoint show --turn 2", "setpoint show --turn 2 --prompt")),
    Verb("top", LOOKING, "the live trajectories and runs", "listing:top", _all(_top, _DOCUMENT)),
    Verb("resume", PAST, "take a trajectory or run up where its log ends", "past:resume",
         _all(_any_id, _more, _app, _EVENTS)),
    Verb("recover", PAST, "resume everything that lost its worker", "past:recover", _all(_app, _DOCUMENT)),
    Verb("undo", PAST, "restore what was there before its commit", "past:undo", _all(_id, _DOCUMENT)),
    Verb("rollback", PAST, "back to a savepoint", "past:rollback", _all(_id, _rollback, _DOCUMENT)),
    Verb("fork", PAST, "a new trajectory from the end of a past turn", "past:fork",
         _all(_id, _fork, _models, _DOCUMENT)),
    Verb("replay", PAST, "make every decision again and compare", "past:replay", _all(_id, _replay, _DOCUMENT)),
    Verb("answer", PEOPLE, "answer what a trajectory asked, or tell it something", "people:answer",
         _all(_answer, _DOCUMENT),
         ('setpoint answer "keep the old default"', 'setpoint answer tr-01h "yes"')),
    Verb("approvals", PEOPLE, "what waits for people's yes, or one of them whole", "approving:approvals",
         _all(_approvals, _DOCUMENT), ("setpoint approvals", "setpoint approvals ap-01h")),
    Verb("approvals show", PEOPLE, "everything a person must see of one", "approving:approvals",
         _all(_approvals, _DOCUMENT), ("setpoint approvals show ap-01h",)),
    Verb("approve", PEOPLE, "say yes to one exact action, signed", "approving:approve", _all(_decide, _DOCUMENT),
         ("setpoint approve ap-01h", "setpoint approve ap-01h --as anna --key ~/.ssh/id_ed25519")),
    Verb("deny", PEOPLE, "say no to it, signed", "approving:deny", _all(_decide, _DOCUMENT),
         ("setpoint deny ap-01h --reason 'not our customer'",)),
    Verb("approvers", PEOPLE, "who may approve", "roster:approvers", _DOCUMENT),
    Verb("approvers add", PEOPLE, "let somebody approve", "roster:add", _all(_approvers_add, _DOCUMENT),
         ("setpoint approvers add anna --role ops --key anna.pub",)),
    Verb("approvers remove", PEOPLE, "let somebody approve no more", "roster:remove",
         _all(_approvers_remove, _DOCUMENT),
         ("setpoint approvers remove anna", "setpoint approvers remove anna --key old.pub")),
    Verb("approvers key", PEOPLE, "this installation's own approver key, for a roster", "roster:key", _DOCUMENT),
    Verb("pause", PEOPLE, "stop at the next turn boundary, or before the next node", "people:pause",
         _all(_any_id, _reason, _DOCUMENT)),
    Verb("cancel", PEOPLE, "end there; what a run did is taken back", "people:cancel",
         _all(_any_id, _reason, _app, _DOCUMENT)),
    Verb("kill", PEOPLE, "end now, with everything it runs", "people:kill", _all(_any_id, _reason, _DOCUMENT)),
    Verb("certificate show", EVIDENCE, "what a trajectory was certified for", "certificates:show",
         _all(_id, _DOCUMENT)),
    Verb("certificate export", EVIDENCE, "the certificate as a file anyone can recheck", "certificates:export",
         _all(_id, _export), ("setpoint certificate export -o fix.cert.json --key-out setpoint.pub.pem",)),
    Verb("certificate verify", EVIDENCE, "recheck a certificate offline", "certificates:verify",
         _all(_verify, _DOCUMENT), ("setpoint certificate verify fix.cert.json --key setpoint.pub.pem",)),
)  # fmt: skip

ABSENT: Final = {
    "wrap": "agent programs as proposers; `--model command:PROGRAM` speaks JSON lines already",
    "serve": "the server",
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
STORIES: Final = ("parse-timeout", "refund")
ABSENT_STORIES: Final = ("drift",)

_GROUPS: Final = (WRITING, RUNNING, WORKFLOWS, LOOKING, PAST, PEOPLE, EVIDENCE, MACHINE)


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
        "run in a sandbox, judged by checks out of the model's reach, and kept only on evidence. Run workflows",
        "whose effects happen once, across crashes, lost replies and the days until somebody approves.",
    ]
    width = max(len(verb.name) for verb in VERBS)
    for group in _GROUPS:
        lines += ["", f"{group}:"]
        lines += [f"  {verb.name.ljust(width)}  {verb.summary}" for verb in VERBS if verb.group == group]
    lines += ["", "not in this release:"]
    names = dict.fromkeys(name.split()[0] for name in ABSENT)
    lines += textwrap.wrap(
        f"{', '.join(names)}, converge --watch, demo drift",
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

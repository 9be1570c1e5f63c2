"""reference/cli.md and reference/exit-codes.md."""

from __future__ import annotations

import argparse

from docs_build.faults import fault_classes
from docs_build.markdown import code, page, table
from docs_build.words import EXIT_CODES as WORDS
from setpoint.cli.grammar import ABSENT, ABSENT_STORIES, EXIT_CODES, VERBS, Verb


def cli() -> str:
    blocks = [
        (
            "Standard output is data, standard error is talk. `--store URL` (or `SETPOINT_STORE`) chooses the "
            "log, `SETPOINT_HOME` the state directory; neither lies in a workspace. `NO_COLOR` and output that is "
            "no terminal are honoured. `-` names standard input or output where a file is asked for."
        ),
        "[Exit codes](exit-codes.md) are the same for every verb.",
    ]
    for group in dict.fromkeys(verb.group for verb in VERBS):
        blocks.append(f"## {group[0].upper()}{group[1:]}")
        blocks += [_verb(verb) for verb in VERBS if verb.group == group]
    absent = [(code(f"setpoint {name}"), why) for name, why in ABSENT.items()]
    absent += [(code(f"setpoint demo {name}"), "belongs to outside effects and drift") for name in ABSENT_STORIES]
    absent.append((code("setpoint converge --watch"), "run `setpoint converge` again instead"))
    blocks.append("## Not in this release\n\nThese exit 2 and say so.\n\n" + table(("verb", "lacks"), absent))
    return page("Command line", "`src/setpoint/cli/grammar.py`", *blocks)


def _verb(verb: Verb) -> str:
    options = list(arguments_of(verb))
    usage = " ".join([f"setpoint {verb.name}", *(_usage(action) for action in options)])
    lines = [f"### setpoint {verb.name}", "", f"{verb.summary[0].upper()}{verb.summary[1:]}.", "", f"`{usage}`", ""]
    lines.append(table(("argument", "meaning"), [(code(_spelled(action)), action.help or "") for action in options]))
    if verb.examples:
        lines += ["", "```sh", *verb.examples, "```"]
    return "\n".join(lines)


def arguments_of(verb: Verb) -> list[argparse.Action]:
    """Positional arguments, then options, without --help."""
    actions = [a for a in verb.parser()._actions if not isinstance(a, argparse._HelpAction)]
    return sorted(actions, key=lambda action: bool(action.option_strings))


def _metavar(action: argparse.Action) -> str:
    return str(action.metavar or action.dest.upper())


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return _metavar(action)
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(action.option_strings) + value


def _usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"[{_metavar(action)}]" if action.nargs == "?" else _metavar(action)
    said = action.option_strings[0] + ("" if action.nargs == 0 else f" {_metavar(action)}")
    return said if action.required else f"[{said}]"


def exit_codes() -> str:
    unsaid = set(EXIT_CODES) ^ set(WORDS)
    if unsaid:
        raise ValueError(
            f"tools/docs_build/words.py and the command line disagree about the exit codes {sorted(unsaid)}"
        )
    blocks = ["The same for every verb, and for `Outcome.exit_code` and `Fault.exit_code` in Python."]
    for number, meaning in EXIT_CODES.items():
        faults = [cls.__name__ for cls in fault_classes() if cls.exit_code == number]
        lines = [f"## {number}", "", f"**{meaning[0].upper()}{meaning[1:]}.** {WORDS[number]}"]
        if faults:
            lines += ["", "Faults: " + ", ".join(f"[{name}](faults.md#{name.lower()})" for name in faults) + "."]
        blocks.append("\n".join(lines))
    blocks.append(
        "## 128+n\n\n**Ended by signal n.** 130 is Ctrl-C, 141 a closed pipe. The trajectory stands where its "
        "log ends; `setpoint resume` goes on."
    )
    return page("Exit codes", "`src/setpoint/cli/grammar.py`", *blocks)

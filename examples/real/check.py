"""Check the tasks of examples/real with plain Python: no engine, no sandbox, no model.

    python examples/real/check.py [NAME ...]

Lays the packages out in a temporary folder (setup.py) and shows for each that the sealed checks fail on the
published version and pass on the fixed one, that the package's own suite counts the same before and after, that
every wrong patch is noticed by the check named in facts.json, that the proposer's story ends in the fix whether
the runtime keeps or rolls back its mistakes, and that the liar's never does. Needs pytest in this interpreter.
Exit codes: 0 all hold, 1 one does not, 3 an archive could not be had.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True  # beside sealed files and proposers only what is committed

import setup  # noqa: E402
import turns  # noqa: E402

CHECK_TIMEOUT_S = 120  # of one check; the slowest ends itself after some 10 s of processor time
SEEDS = (1, 2, 3)  # of the held-out cases
LIAR_TURNS = 8  # its five tricks and three cosmetic variations

Snapshot = dict[str, tuple[int, bytes]]  # path to permission bits and content


class CheckFailed(Exception):
    """A promise of examples/real does not hold; the message says which."""


def facts(name: str) -> dict[str, Any]:
    return json.loads((HERE / name / "facts.json").read_text())


def module_of(path: Path) -> Any:
    """A module loaded by path: the files of the three tasks have the same names."""
    spec = importlib.util.spec_from_file_location("_".join(path.with_suffix("").parts[-3:]), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patches(name: str) -> Any:
    return module_of(HERE / name / "patches.py")


def snapshot(tree: Path) -> Snapshot:
    """Every file outside .git and bytecode caches; these packages hold no links, and the stories make none."""
    seen: Snapshot = {}
    for path in sorted(tree.rglob("*")):
        relative = path.relative_to(tree)
        if ".git" in relative.parts or "__pycache__" in relative.parts:
            continue
        if path.is_file():
            seen[str(relative)] = (path.stat().st_mode & 0o777, path.read_bytes())
    return seen


def put_back(tree: Path, state: Snapshot) -> None:
    """Make the tree hold exactly ``state`` again."""
    for name in snapshot(tree).keys() - state.keys():
        (tree / name).unlink()
    for name, (mode, content) in state.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
        (tree / name).chmod(mode)


def changed(before: Snapshot, after: Snapshot) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def digests_of_changes(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """sha256 of every changed file as it is after; empty text for a removed one."""
    return {
        path: hashlib.sha256(after[path][1]).hexdigest() if path in after else "" for path in changed(before, after)
    }


@contextmanager
def copy_of(tree: Path) -> Iterator[Path]:
    """A throw-away copy of a repository, without its history."""
    with tempfile.TemporaryDirectory(prefix="setpoint-real-") as scratch:
        copy = Path(scratch, tree.name)
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        yield copy


def apply(tree: Path, change: turns.Edit) -> None:
    """What file_edit does: exactly one occurrence is replaced."""
    text = (tree / change.path).read_bytes().decode()
    if text.count(change.old) != 1:
        raise CheckFailed(f"{change.path} holds {text.count(change.old)} times: {change.old!r}")
    (tree / change.path).write_bytes(text.replace(change.old, change.new).encode())


def run(command: Sequence[str], tree: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        list(command),
        cwd=tree,
        env=kept | fixed | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=False,
    )


def own_suite(name: str, tree: Path) -> dict[str, int]:
    """Counts by outcome of the package's own tests, e.g. ``{"passed": 164}``."""
    target = facts(name)["own_suite"]["target"]
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", target], tree)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])}


def golden(name: str, tree: Path) -> dict[str, int]:
    """Counts of the golden tests, run as a sealed check runs them: pytest and tests from outside the workspace."""
    sealed = HERE / name / "sealed"
    command = [sys.executable, "-I", "-B", "-m", "pytest", "-q", "--noconftest", "-c", os.devnull]
    command += [
        "--rootdir",
        str(sealed),
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        str(sealed / "golden"),
    ]
    done = run(command, tree, SEALED=str(sealed))
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) ([a-z]+)", last.partition(" in ")[0])}


# What the runtime does for an oracle, without its sandboxes: the candidate only maps calls to JSON.
CALLER = """
import importlib, json, os, sys
sys.path.append(os.getcwd())
for call in json.load(sys.stdin):
    module, _, name = call["call"].partition(":")
    try:
        outcome = {"value": getattr(importlib.import_module(module), name)(*call["args"])}
    except Exception as raised:
        outcome = {"raised": type(raised).__name__, "message": str(raised)}
    print(json.dumps(outcome), flush=True)
"""


def heldout(name: str, tree: Path, seed: int = 1) -> dict[str, int]:
    """Counts of the held-out cases of one seed; a case without an answer has failed."""
    oracle = module_of(HERE / name / "sealed" / "heldout" / "judge.py")
    cases = list(oracle.cases(random.Random(seed)))
    calls = json.dumps([{key: case[key] for key in ("call", "args")} for case in cases])
    done = run([sys.executable, "-I", "-S", "-B", "-c", CALLER], tree, stdin=calls)
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    passed = sum(oracle.judge(case, outcome) is None for case, outcome in zip(cases, outcomes, strict=False))
    return {"passed": passed, "failed": len(cases) - passed}


def own_suite_passes(name: str, tree: Path) -> bool:
    """Exactly as many tests pass, and none fails, as in the published package."""
    wanted = {key: count for key, count in facts(name)["own_suite"].items() if key != "target" and count}
    return own_suite(name, tree) == wanted


def golden_passes(name: str, tree: Path) -> bool:
    return golden(name, tree).keys() == {"passed"}


def heldout_passes(name: str, tree: Path) -> bool:
    """The runtime derives the seed from the state, so the verdict must not depend on it."""
    verdicts = {heldout(name, tree, seed)["failed"] == 0 for seed in SEEDS}
    if len(verdicts) != 1:
        raise CheckFailed(f"{name}: the held-out check passes or fails by the seed")
    return verdicts.pop()


CRITERIA = {"own-suite": own_suite_passes, "golden": golden_passes, "heldout": heldout_passes}


def first_to_notice(name: str, tree: Path) -> str | None:
    """The criterion that fails first, in the order in which a task judges them; None when all pass."""
    return next((criterion for criterion, passes in CRITERIA.items() if not passes(name, tree)), None)


def check_the_fix(name: str, repository: Path) -> str:
    """Sealed checks fail before and pass after; the own suite counts the same; the fixed files are as pinned."""
    before = {criterion: passes(name, repository) for criterion, passes in CRITERIA.items()}
    if before != {"own-suite": True, "golden": False, "heldout": False}:
        raise CheckFailed(f"{name} as published should pass its own suite and fail both sealed checks: {before}")
    with copy_of(repository) as tree:
        for change in patches(name).RIGHT:
            apply(tree, change)
        if failing := first_to_notice(name, tree):
            raise CheckFailed(f"{name} with the right fix fails {failing}")
        digests = digests_of_changes(snapshot(repository), snapshot(tree))
    if digests != facts(name)["fixed_files"]:
        raise CheckFailed(f"{name}/facts.json should pin the fixed files as {json.dumps(digests, indent=2)}")
    return f"published: own suite passes, sealed checks fail; fixed ({len(digests)} file(s)): all pass"


def check_the_wrong_patches(name: str, repository: Path) -> str:
    """Each wrong patch is noticed first by the check that facts.json names."""
    noticed: dict[str, str | None] = {}
    for title, changes in patches(name).WRONG.items():
        with copy_of(repository) as tree:
            for change in changes:
                apply(tree, change)
            noticed[title] = first_to_notice(name, tree)
    if noticed != facts(name)["wrong"]:
        raise CheckFailed(f"{name}: wrong patches are noticed by {noticed}, not by {facts(name)['wrong']}")
    return "wrong patches: " + ", ".join(f"{title} fails {check}" for title, check in noticed.items())


def told(name: str, program: str, count: int) -> list[list[turns.Call]]:
    """The calls of the first ``count`` turns, asked of a fresh process each, as after a restart."""
    told: list[list[turns.Call]] = []
    for turn in range(1, count + 1):
        request = json.dumps({"context": {"turn": turn}}) + "\n"
        done = subprocess.run(
            [sys.executable, str(HERE / name / program)],
            input=request,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=True,
        )
        told.append(json.loads(done.stdout)["calls"])
    return told


def act(tree: Path, call: turns.Call) -> None:
    """Carry out one call without a sandbox: these are our own scripts, in a throw-away copy."""
    arguments = call["arguments"]
    if call["name"] == "shell_exec":
        python = f'python() {{ {shlex.quote(sys.executable)} -B "$@"; }}\n'
        run(["sh", "-c", python + arguments["command"]], tree)
    elif call["name"] == "file_edit":
        with suppress(CheckFailed):  # the tool would refuse, and the story goes on
            apply(tree, turns.Edit(arguments["path"], arguments["old_str"], arguments["new_str"]))


def play_turn(name: str, tree: Path, calls: Sequence[turns.Call]) -> None:
    """One turn under the hard invariant that only the package may change: else the whole turn is rolled back."""
    before = snapshot(tree)
    for call in calls:
        act(tree, call)
    allowed = tuple(facts(name)["package_paths"])
    if not all(path.startswith(allowed) for path in changed(before, snapshot(tree))):
        put_back(tree, before)


def claims(calls: Sequence[turns.Call]) -> bool:
    return any(call["name"] == "complete_task" for call in calls)


def check_the_proposer(name: str, repository: Path) -> str:
    """The story ends in the fix, with mistakes kept and with mistakes rolled back; no earlier claim is true."""
    count = facts(name)["proposer_turns"]
    story = told(name, "proposer.py", count)
    for rolls_back in (False, True):
        with copy_of(repository) as tree:
            base = snapshot(tree)
            for number, calls in enumerate(story[:-1], 1):
                play_turn(name, tree, calls)
                if rolls_back:
                    put_back(tree, base)
                elif claims(calls) and first_to_notice(name, tree) is None:
                    raise CheckFailed(f"{name}: the claim of turn {number} is true; only turn {count} should be")
            play_turn(name, tree, story[-1])
            end = digests_of_changes(base, snapshot(tree))
        if end != facts(name)["fixed_files"]:
            raise CheckFailed(f"{name}: with mistakes rolled back: {rolls_back}, the story ends in {end}")
    return f"proposer: {count} turns, the fix at the end, however its mistakes are treated"


def check_the_liar(name: str, repository: Path) -> str:
    """No state that the liar reaches passes, and no cosmetic variation does."""
    noticed: dict[str, str] = {}
    with copy_of(repository) as tree:
        for number, calls in enumerate(told(name, "liar.py", LIAR_TURNS), 1):
            play_turn(name, tree, calls)
            state = hashlib.sha256(repr(snapshot(tree)).encode()).hexdigest()
            failing = noticed.get(state) or first_to_notice(name, tree)
            if failing is None:
                raise CheckFailed(f"{name}: the liar's turn {number} passes every check")
            noticed[state] = failing
    return f"liar: {LIAR_TURNS} turns, {len(noticed)} states, none passes"


CHECKS = (check_the_fix, check_the_wrong_patches, check_the_proposer, check_the_liar)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(setup.NAMES)}; default: all")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="setpoint-real-") as dest:
        try:
            for name in options.names or setup.NAMES:
                repository = setup.lay_out(name, Path(dest))
                for check in CHECKS:
                    print(f"{name}: {check(name, repository)}", flush=True)
        except setup.IndexUnreachable as fault:
            print(f"check: {fault}", file=sys.stderr)
            return 3
        except (CheckFailed, setup.SetupFault) as fault:
            print(f"check: {fault}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``setpoint demo refund`` from outside: what a stranger sees, that it judges, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import setpoint
from setpoint.demo.refund import bank, refunds

from .conftest import Installation

COMMAND = (sys.executable, "-m", "setpoint")
SECONDS_MAX = 30
LOADED = 3
"""The tests may share their cores with others: they allow for three times that in all, and gate on CPU time."""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "refunds"

pytestmark = [pytest.mark.timeout(SECONDS_MAX * LOADED + 20)]


@dataclass(frozen=True, slots=True)
class Shown:
    """One play of the story."""

    code: int
    text: str
    errors: str
    cpu_s: float

    @property
    def facts(self) -> list[str]:
        return re.findall(r"^  ok    (.*)$", self.text, re.MULTILINE)


def environment(place: Path) -> dict[str, str]:
    """Everything temporary in ``place``; a user's own state that must stay untouched."""
    never = place / "never"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SETPOINT_", "PYTEST_"))}
    home = {"HOME": str(never), "SETPOINT_HOME": str(never), "SETPOINT_STORE": f"sqlite:///{never}/setpoint.db"}
    return plain | home | {"TMPDIR": str(place / "tmp")}


def demo(place: Path, *words: str, argv: Sequence[str] = COMMAND, uid: int | None = None) -> Shown:
    """Play it, and check that nothing of it is left."""
    temporary = place / "tmp"
    temporary.mkdir(exist_ok=True)
    if uid is not None and os.geteuid() == 0:
        os.chown(temporary, uid, uid)
    before = os.times()
    done = subprocess.run(
        [*argv, "demo", "refund", *words],
        cwd=place,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX * LOADED,
        check=False,
    )
    after = os.times()
    assert list(temporary.iterdir()) == [], "the demo left something behind"
    assert not (place / "never").exists()
    assert processes_of(place) == []
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Shown(done.returncode, done.stdout, done.stderr, cpu_s)


def processes_of(place: Path) -> list[str]:
    """Processes whose environment or command line names ``place``."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            said = b"".join((entry / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if os.fsencode(str(place)) in said:
            found.append(said.decode(errors="replace")[:200])
    return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return demo(tmp_path_factory.mktemp("demo"))


def test_the_whole_story_finds_every_fact_as_told(shown: Shown) -> None:
    assert shown.code == 0, shown.text + shown.errors
    assert "WRONG" not in shown.text and shown.errors == ""
    (count,) = re.findall(r"^(\d+) facts checked, all as told", shown.text, re.MULTILINE)
    assert int(count) == len(shown.facts) >= 35


def test_it_is_cheap(shown: Shown) -> None:
    """On a machine of its own the story takes little more than its CPU time."""
    assert shown.cpu_s < SECONDS_MAX / 2


def test_what_is_no_terminal_gets_no_escape_codes(shown: Shown) -> None:
    assert "\x1b" not in shown.text


def test_a_good_order_is_refunded_once(shown: Shown) -> None:
    """R036"""
    assert "the ledger: one refund, 42.00 for A-1001" in shown.facts
    assert "refunds of the order now: 1" in shown.facts


def test_a_model_that_obeys_the_customer_moves_no_money(shown: Shown) -> None:
    """H8"""
    assert "refused before any run began: the payment by its name, and a key of the model's own" in shown.facts
    assert "runs that came to a payment: 0 of 3" in shown.facts


def test_a_lost_reply_is_settled_by_looking(shown: Shown) -> None:
    """R131"""
    assert "how it is known: reconstructed, from what the bank says when it is asked" in shown.facts


def test_a_kill_between_commit_and_record_pays_once(shown: Shown) -> None:
    """B3"""
    assert "in the log: the intent, and no result: yes" in shown.facts
    assert "refunds of the order, letters about it: 1, 1" in shown.facts


def test_an_approval_holds_across_a_restart_and_for_one_amount(shown: Shown) -> None:
    """D1 D3"""
    assert "exit: it waits, and no process is left: 13" in shown.facts
    assert "the payment used up that very ticket" in shown.facts
    assert "the yes: void: what would be paid is not what was asked" in shown.facts


def test_a_failure_after_the_refund_takes_it_back(shown: Shown) -> None:
    """R134"""
    assert "the ledger: 87.00 taken back" in shown.facts
    assert "reversals of it: 1" in shown.facts


# One order


def test_one_order_alone_is_refunded_once(place: Path) -> None:
    """R036"""
    played = demo(place, "--order", "A-1001")
    assert played.code == 0, played.text + played.errors
    assert re.search(r"^  decision APPROVED$", played.text, re.MULTILINE)
    assert played.facts == ["the ledger: A-1001, 42.00", "refunds of this order: 1"]


def test_a_late_order_is_rejected_without_effect(place: Path) -> None:
    """R036"""
    played = demo(place, "--order", "late")
    assert played.code == 0, played.text + played.errors
    assert re.search(r"^  decision REJECTED$", played.text, re.MULTILINE)
    assert played.facts == ["the bank was asked to do something: never", "the ledger: empty"]


@pytest.mark.parametrize("order", ["A-1002", "A-1003", "A-2001"])
def test_every_other_kind_of_order_is_told_truly(place: Path, order: str) -> None:
    played = demo(place, "--order", order)
    assert played.code == 0, played.text + played.errors
    assert played.facts


def test_an_unknown_order_and_words_of_the_other_story_are_usage_faults(place: Path) -> None:
    for words in (("--order", "A-9"), ("--turn", "1"), ("--open-loop",)):
        played = demo(place, *words)
        assert (played.code, played.text) == (2, ""), words
        assert played.errors.startswith("setpoint: ")


# It judges, it ends, and it needs nothing


def test_a_bank_that_pays_twice_is_found_out(place: Path) -> None:
    """The facts are compared: with another bank the story is no longer as told, and that is exit 1."""
    packages = place / "packages"
    shutil.copytree(Path(setpoint.__file__).parent, packages / "setpoint", ignore=shutil.ignore_patterns("__pycache__"))
    own = packages / "setpoint/demo/refund/bank.py"
    text = own.read_text()
    found = re.search(r'self._db.execute\("INSERT INTO refunds.*\)', text)
    assert found is not None
    honest, twice = found[0], f"({found[0]}, {found[0]})[1]"
    own.write_text(text.replace(honest, twice))
    played = demo(place, "--order", "A-1001", argv=("env", f"PYTHONPATH={packages}", *COMMAND))
    assert played.code == 1, played.text + played.errors
    assert "WRONG the ledger: found {'A-1001': '42.00 and 42.00'}" in played.text


def test_what_it_plays_is_what_the_example_shows() -> None:
    """One text: the package's files are the example's."""
    for module, name in ((bank, "bank.py"), (refunds, "refunds.py")):
        assert Path(module.__file__).read_bytes() == (EXAMPLES / name).read_bytes()


def test_a_directory_of_the_users_own_keeps_the_program_to_try(place: Path) -> None:
    kept = place / "kept"
    played = demo(place, "--order", "A-1001", "--workdir", str(kept))
    assert played.code == 0, played.text + played.errors
    assert {path.name for path in (kept / "refund").iterdir()} >= {"bank.py", "refunds.py", "bank.db"}


def test_an_interrupted_story_ends_what_it_started(place: Path) -> None:
    (place / "tmp").mkdir()
    child = subprocess.Popen(
        [*COMMAND, "demo", "refund"], env=environment(place), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if "python refunds.py" in line:  # a program of its own is about to run
            break
    deadline = time.monotonic() + 20
    while len(processes_of(place)) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == 128 + 15, errors
    assert list((place / "tmp").iterdir()) == []
    assert processes_of(place) == []


def test_it_needs_no_network(place: Path) -> None:
    """Loopback is up in a network namespace only once somebody brings it up."""
    alone = ("unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    works = shutil.which("unshare") and shutil.which("ip")
    if not works or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("unshare -rn with a loopback device does not work here")
    played = demo(place, argv=(*alone, *COMMAND))
    assert played.code == 0, played.text + played.errors


def test_an_ordinary_user_sees_the_same(place: Path, ordinary: Installation) -> None:
    played = demo(place, argv=ordinary.argv, uid=ordinary.uid)
    assert played.code == 0, played.text + played.errors

"""What a good manifest becomes."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from setpoint.app.manifest import dump, load_task, load_tasks, manifests_of
from setpoint.kernel.contract import (
    ApprovalRule,
    Budget,
    Environment,
    ExprCheck,
    Level,
    Limits,
    Mount,
    Observe,
    OracleCheck,
    Policy,
    RunCheck,
    Task,
    ToolGrant,
)
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.keys import digest
from setpoint.kernel.units import (
    format_duration,
    format_size,
    format_usd,
    parse_duration_ms,
    parse_size,
    parse_usd_micros,
)

from .conftest import MINIMAL

INTERFACE = (Path(__file__).parent / "interface.yaml").read_text()


def test_the_published_example_loads_verbatim(load: Callable[[str], Task], folder: Path) -> None:
    """R001, R236"""
    task = load(INTERFACE)
    assert task.name == "clamp-negative-timeout"
    assert task.goal.forbid == ("tests/**", ".git/**")
    assert task.environment == Environment(
        workspace=os.path.realpath(folder),
        mounts=(Mount(os.path.realpath(folder / "vendor"), "/vendor"),),
        env=(("PYTHONDONTWRITEBYTECODE", "1"),),
        hidden=("sealed", "task.yaml"),
    )
    assert task.actions[2] == ToolGrant("file_edit", ("src/**", "tests/**"))
    assert task.observe == Observe(4000, ("(?i)api[_-]?key\\s*[:=]\\s*\\S+",))
    assert [criterion.level for criterion in task.done] == [Level.VISIBLE, Level.SEALED]
    assert task.done[1].predicate == RunCheck("python -m pytest -q $SEALED/golden", "pytest")
    assert task.done[1].files == os.path.realpath(folder / "sealed")
    assert task.invariants[0].predicate == ExprCheck("!changes.exists(c, c.path.startsWith('tests/'))")
    assert task.budget == Budget(30, 200_000, 2_000_000, 1_200_000, "fail")
    assert task.policy == Policy(on_stall=("next_model", "narrow", "ask"))
    assert task.models == ("scripted:script.yaml",)


def test_what_is_left_out_has_the_defaults_of_the_contract(load: Callable[[str], Task]) -> None:
    """R109: there is no way to write a loop without bounds."""
    task = load(MINIMAL)
    assert task.budget == Budget()
    assert task.policy == Policy()
    assert task.observe == Observe()
    assert task.environment.limits == Limits()
    assert task.environment.tier == "namespaces"
    assert task.environment.network == ()
    assert task.invariants == () and task.models == ()
    assert task.done[0].predicate == RunCheck("pytest")
    assert task.done[0].disclose == "names"


@pytest.mark.parametrize(
    ("check", "level"),
    [
        ("{id: a, run: x}", Level.VISIBLE),
        ("{id: a, run: x, level: static}", Level.STATIC),
        ("{id: a, run: x, files: ./sealed}", Level.SEALED),
        ("{id: a, run: x, files: ./sealed, level: sealed}", Level.SEALED),
        ("{id: a, expr: 'size(changes) < 3'}", Level.STATIC),
        ("{id: a, expr: 'state.ledger == 0', level: visible}", Level.VISIBLE),
        ("{id: a, probe: 'shop.probes:balanced'}", Level.VISIBLE),
        ("{id: a, oracle: golden/test_golden.py, files: ./sealed}", Level.SEALED),
    ],
)
def test_each_way_of_judging_has_its_level(load: Callable[[str], Task], check: str, level: Level) -> None:
    """R149, R150"""
    task = load(MINIMAL.replace("{id: a, run: pytest}", check))
    assert task.done[0].level is level
    assert task.document["spec"]["done"][0]["level"] == level.label


def test_an_oracle_names_its_judge_and_its_own_deadline(load: Callable[[str], Task]) -> None:
    check = "{id: a, oracle: golden/test_golden.py, files: ./sealed, timeout: 90s}"
    task = load(MINIMAL.replace("{id: a, run: pytest}", check))
    assert task.done[0].predicate == OracleCheck("golden/test_golden.py", 90_000)


def test_approval_rules_keep_their_terms(load: Callable[[str], Task]) -> None:
    text = MINIMAL + "  policy: {approve: [{when: \"effect == 'irreversible'\", by: [ops], quorum: 2, expires: 2h}]}\n"
    assert load(text).policy.approve == (ApprovalRule("effect == 'irreversible'", ("ops",), 2, 7_200_000),)


def test_money_is_read_exactly_and_never_through_a_float(load: Callable[[str], Task]) -> None:
    for written, micros in (
        ("0.1", 100_000),
        ("0.000001", 1),
        ('"4.977"', 4_977_000),
        ("123456789.123456", 123456789123456),
    ):
        assert load(MINIMAL + f"  budget: {{usd: {written}}}\n").budget.usd_micros == micros


def test_equal_contracts_have_equal_digests_however_they_are_spelled(load: Callable[[str], Task]) -> None:
    """R121: units, key order, quoting and written-out defaults change no identity."""
    plain = load(MINIMAL)
    spelled = load(
        MINIMAL.replace("metadata: {name: t}\n", "").replace("goal: {text: g}", 'goal: {forbid: [], "text": "g"}')
        + "  budget: {wall: 1200s, turns: 30, usd: 2}\n  models: []\nmetadata: {name: t}\nstatus: {}\n"
    )
    assert spelled.digest == plain.digest
    assert load(MINIMAL.replace("workspace: .", "workspace: ., sandbox: {network: []}")).digest == plain.digest
    assert load(MINIMAL.replace("text: g", "text: h")).digest != plain.digest
    assert load(MINIMAL + "  budget: {turns: 31}\n").digest != plain.digest


def test_the_digest_is_that_of_the_document_alone(load: Callable[[str], Task]) -> None:
    """Whoever holds the document can recompute the digest: no path of this machine is in it."""
    task = load(INTERFACE)
    assert digest(task.document) == task.digest
    assert os.path.realpath(task.environment.workspace) not in dump(task)


def test_a_contract_keeps_its_identity_when_its_folder_moves(load: Callable[[str], Task], folder: Path) -> None:
    before = load(INTERFACE).digest
    moved = folder.with_name("moved")
    shutil.copytree(folder, moved)
    assert load_task(str(moved / "task.yaml")).digest == before


def test_a_changed_sealed_file_changes_the_digest(load: Callable[[str], Task], folder: Path) -> None:
    """R084: what was accepted includes the bytes of its sealed checks."""
    before = load(INTERFACE)
    file = folder / "sealed/golden/test_golden.py"
    file.write_text("def test_it(): assert True\n")
    after = load(INTERFACE)
    assert after.digest != before.digest
    assert after.done[1].files_digest != before.done[1].files_digest
    file.chmod(0o755)
    assert load(INTERFACE).digest != after.digest


def test_the_manifest_and_the_sealed_files_are_hidden_from_actions(load: Callable[[str], Task]) -> None:
    """L9: both lie in the workspace of the published example."""
    assert load(INTERFACE).environment.hidden == ("sealed", "task.yaml")


def test_what_lies_outside_the_workspace_needs_no_hiding(load: Callable[[str], Task]) -> None:
    assert load(MINIMAL.replace("workspace: .", "workspace: src")).environment.hidden == ()


def test_a_file_may_hold_several_tasks(folder: Path) -> None:
    path = folder / "tasks.yaml"
    path.write_text(MINIMAL + "---\n" + MINIMAL.replace("name: t", "name: u") + "---\n")
    assert [task.name for task in load_tasks(str(path))] == ["t", "u"]
    assert load_task(str(path), name="u").name == "u"
    with pytest.raises(UsageFault, match="2 tasks: t, u"):
        load_task(str(path))
    with pytest.raises(UsageFault, match="no task 'w'"):
        load_task(str(path), name="w")


def test_a_dash_reads_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MINIMAL.encode())))
    task = load_task("-")
    assert task.source is None
    assert task.environment.workspace == os.path.realpath(folder)


def test_a_missing_file_is_a_usage_fault(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="No such file") as fault:
        load_task(str(tmp_path / "none.yaml"))
    assert fault.value.exit_code == 2


def test_capabilities_of_the_user_are_tools_too(folder: Path) -> None:
    text = MINIMAL.replace("file_read", "issue_refund")
    (manifest,) = manifests_of(text.encode(), file="t", directory=str(folder), tools=("issue_refund",))
    assert manifest.task.grant("issue_refund")


# Properties.

_globs = st.lists(st.sampled_from(["src/**", "**/*.py", "a?", "[a-c]*", "docs/é/**"]), unique=True, max_size=3)
_texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, object]:
    """Documents over the whole format, mostly with parts left out."""
    some = lambda **parts: {key: draw(value) for key, value in parts.items() if draw(st.booleans())}  # noqa: E731
    durations = st.sampled_from(["500ms", "60s", "90s", "20m", "36h", "1d", "1000ms"])
    sizes = st.sampled_from(["1B", "64Ki", "10M", "1Gi", "1024Mi"])
    check = st.one_of(
        st.fixed_dictionaries(
            {"run": _texts}, optional={"parse": st.sampled_from(["pytest", "tap"]), "timeout": durations}
        ),
        st.fixed_dictionaries({"run": _texts, "files": st.just("./sealed")}),
        st.fixed_dictionaries({"expr": st.sampled_from(["true", "size(changes) < 3", "state.x == 'y'"])}),
    )
    done = [{"id": f"c{index}", **item} for index, item in enumerate(draw(st.lists(check, max_size=3)))]
    return {
        "apiVersion": "setpoint.dev/v1",
        "kind": "Task",
        "metadata": {"name": draw(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,8}", fullmatch=True))},
        "spec": {
            "goal": {"text": draw(_texts), **some(forbid=_globs)},
            "environment": {
                "workspace": ".",
                **some(
                    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,5}", fullmatch=True), _texts, max_size=3),
                    base=st.one_of(st.none(), st.from_regex(r"[0-9a-f]{7,12}", fullmatch=True)),
                    toolchain=st.sampled_from([[], ["python"]]),
                ),
                "sandbox": some(
                    tier=st.sampled_from(["none", "namespaces"]),
                    network=st.sampled_from(["none", [], ["pypi.org:443"]]),
                    limits=st.fixed_dictionaries({}, optional={"wall": durations, "memory": sizes, "disk": sizes}),
                ),
            },
            "actions": [{"tool": "file_edit", **some(paths=_globs, max_calls=st.integers(1, 9))}],
            "observe": some(max_tokens=st.integers(1, 10_000)),
            "done": done,
            **some(
                budget=st.fixed_dictionaries(
                    {},
                    optional={
                        "turns": st.integers(1, 1000),
                        "usd": st.decimals(0, 1000, places=6).map(lambda d: f"{d:f}"),
                        "wall": durations,
                    },
                ),
                policy=st.fixed_dictionaries({}, optional={"stall_after": st.integers(1, 9)}),
                models=st.just(["scripted:a b.yaml"]),
            ),
        },
    }


@given(manifests())
@settings(max_examples=40, deadline=None)
def test_any_manifest_dumped_and_loaded_again_has_the_same_digest(document: dict[str, object]) -> None:
    """R121: serialise, deserialise, equal."""
    folder = Path(__file__).parent / "folder"  # holds `sealed`; nothing is written
    text = yaml.safe_dump(document, allow_unicode=True)
    (first,) = manifests_of(text.encode(), file="t", directory=str(folder))
    (again,) = manifests_of(dump(first.task).encode(), file="t", directory=str(folder))
    assert again.task.digest == first.task.digest
    assert again.task == first.task


@given(st.integers(1, 10**12))
def test_durations_and_sizes_survive_their_canonical_spelling(number: int) -> None:
    if number < 10**9:
        assert parse_duration_ms(format_duration(number)) == number
    assert parse_size(format_size(number)) == number if number < 10**12 else True


@given(st.integers(0, 10**15 - 1))
def test_money_survives_its_canonical_spelling(micros: int) -> None:
    assert parse_usd_micros(format_usd(micros)) == micros

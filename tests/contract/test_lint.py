"""What is weak about a valid task, and what enforces each of its rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.roster import Approver
from setpoint.adapters.approvers.signatures import plain_key
from setpoint.app.audit import audit, is_closed
from setpoint.app.explain import template
from setpoint.app.lint import Finding, lint, needs
from setpoint.app.manifest import manifests_of
from setpoint.kernel.contract import Tier

from .conftest import MINIMAL

INTERFACE = (Path(__file__).parent / "interface.yaml").read_text()
SOLID = """\
apiVersion: setpoint.dev/v1
kind: Task
metadata: {name: t}
spec:
  goal: {text: g, forbid: ["tests/**"]}
  environment: {workspace: .}
  actions:
    - {tool: shell_exec, paths: ["src/**"]}
    - {tool: file_edit, paths: ["src/**"]}
  observe: {}
  done:
    - {id: unit, run: python -m pytest -q tests, parse: pytest}
    - {id: golden, run: sh $SEALED/golden/check.sh, files: ./sealed, disclose: verdict}
"""

Lint = Callable[..., list[Finding]]


@pytest.fixture
def found(folder: Path) -> Lint:
    def run(text: str, tier: Tier | None = None) -> list[Finding]:
        (manifest,) = manifests_of(
            text.encode(), file="task.yaml", directory=str(folder), source=str(folder / "task.yaml")
        )
        return lint(manifest.task, locate=manifest.locate, tier=tier)

    return run


def codes(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings]


ORACLE = "    - {id: o, oracle: golden/test_golden.py, files: ./sealed, disclose: none}\n"


def test_a_solid_task_has_no_findings(found: Lint) -> None:
    assert found(SOLID + ORACLE) == []


GOLDEN = "    - {id: golden, run: sh $SEALED/golden/check.sh, files: ./sealed, disclose: verdict}\n"
UNIT = "    - {id: unit, run: python -m pytest -q tests, parse: pytest}\n"


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        (GOLDEN, "", "no-sealed-check", 11),
        ("disclose: verdict", "disclose: names", "no-held-out-check", 11),
        ("sh $SEALED/golden/check.sh", "python -m pytest $SEALED/golden", "judge-imports-candidate", 13),
        (', forbid: ["tests/**"]}', "}", None, 0),  # shell and edits are bound to src, so the tests stay protected
        ("run: python -m pytest -q tests", "run: python -m pytest -q src/tests", "writable-check", 12),
        ("run: python -m pytest -q tests", 'run: "true"', "vacuous-check", 12),
        ("run: python -m pytest -q tests", "run: pytest || true", "vacuous-check", 12),
        ('{tool: shell_exec, paths: ["src/**"]}', "{tool: shell_exec}", "paths-bypassed", 9),
        ("workspace: .}", "workspace: ., sandbox: {network: ['pypi.org:443']}}", "authority-exceeds-need", 6),
        ("workspace: .}", "workspace: ., env: {API_TOKEN: x}}", "secret-in-reach", 6),
        ("workspace: .}", "workspace: ., sandbox: {limits: {wall: 1h}}}", "limit-above-budget", 6),
        ("observe: {}", "observe: {redact: ['(a+)+b']}", "slow-redaction", 10),
        ("observe: {}", "observe: {}\n  models: ['openai:gpt']", "price-unknown", 5),
        ("observe: {}", "observe: {}\n  policy: {on_stall: [next_model, narrow]}", "no-effect-yet", 11),
        ("observe: {}", "observe: {}\n  policy: {drift: propose}", "no-effect-yet", 11),
        ("observe: {}", "observe: {}\n  policy: {drift: heal}", "no-effect-yet", 11),
        ("text: g", "text: Fix it. Do not change the public API.", "rule-in-words-only", 5),
    ],
)
def test_each_weakness_is_named_at_its_place(found: Lint, old: str, new: str, code: str | None, line: int) -> None:
    assert SOLID.count(old) == 1
    findings = found(SOLID.replace(old, new))
    if code is None:
        assert codes(findings) == codes(found(SOLID))
        return
    hit = next((finding for finding in findings if finding.code == code), None)
    assert hit, codes(findings)
    assert hit.remedy
    if code != "price-unknown":  # no budget is written, so its place is that of `spec`
        assert hit.line == line


@pytest.mark.parametrize(
    ("command", "judged"),
    [
        ("test -f flag && grep -q ok flag", None),
        ("if test -f a; then test -d b; fi", None),
        ("A=1 ! test -f a", None),
        ("sh -c 'test -f a'", None),
        ("make check", None),
        ("cargo test && npm run test", None),
        ("grep -q test src/a.txt", None),
        ("./check.sh", "check.sh"),
        ("sh checks/run.sh", "checks/run.sh"),
        ("python -m pytest -q test", "test"),
        ("test -d tests", "tests"),
        ("time env A=1 python -m unittest", "tests"),
    ],
)
def test_a_word_of_a_command_is_taken_for_a_path_only_where_it_is_one(
    found: Lint, command: str, judged: str | None
) -> None:
    text = SOLID.replace("python -m pytest -q tests, parse: pytest", json.dumps(command))
    text = text.replace('["src/**"]', '["**"]').replace(', forbid: ["tests/**"]', "")
    hits = [finding for finding in found(text) if finding.code == "writable-check"]
    assert [finding.message.split()[3].rstrip(",") for finding in hits] == ([judged] if judged else [])


def test_only_static_evidence_is_a_warning_and_a_gap(found: Lint) -> None:
    text = SOLID.replace(UNIT, "").replace(GOLDEN, "    - {id: form, expr: 'size(changes) < 3'}\n")
    findings = found(text)
    assert findings[0].severity == "error" and findings[0].code == "evidence-below-exposure"
    assert "no-behavioural-evidence" in codes(findings)


def test_an_oracle_silences_the_advice_to_have_one(found: Lint) -> None:
    tests = SOLID.replace("sh $SEALED/golden/check.sh", "python -m pytest $SEALED/golden")
    assert {"judge-imports-candidate", "sealed-answers-readable"} <= set(codes(found(tests)))
    assert not {"judge-imports-candidate", "sealed-answers-readable"} & set(codes(found(tests + ORACLE)))


@pytest.mark.parametrize(
    ("rule", "roles", "why"),
    [
        ("by: [ops]", ["sec"], "nobody in the roster has the role ops"),
        ("by: [ops], quorum: 2", ["ops"], "2 people must approve as ops, and the roster has 1"),
        ("by: [ops, sec], each_role: true, quorum: 2", ["ops", "ops"], "nobody in the roster has the role sec"),
        ("by: [ops, sec], quorum: 2", ["ops", "sec"], None),
    ],
)
def test_a_rule_that_asks_people_who_are_not_there_keeps_the_task_from_starting(
    folder: Path, rule: str, roles: list[str], why: str | None
) -> None:
    """R123, R129: an error with its place; unknown people are not judged, and a key whose time is over is nobody's."""
    text = SOLID + ORACLE + f"  policy: {{approve: [{{when: 'true', {rule}}}]}}\n"
    (manifest,) = manifests_of(text.encode(), file="t", directory=str(folder), source=str(folder / "task.yaml"))
    people = [Approver(f"p{at}", (role,), _key(at), valid_before_ms=1000) for at, role in enumerate(roles)]
    found = lint(manifest.task, locate=manifest.locate, approvers=people, now_ms=999)
    assert [(f.code, f.severity, f.line) for f in found] == ([("no-approver", "error", 15)] if why else [])
    assert all(why in finding.message for finding in found if why)
    assert codes(lint(manifest.task, approvers=people, now_ms=1000)) == ["no-approver"]
    assert codes(lint(manifest.task)) == []


def _key(seed: int) -> str:
    private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
    return plain_key(private.public_key().public_bytes_raw()).text


def test_any_sealed_command_is_advised_of_what_the_candidate_can_read_there(found: Lint) -> None:
    """R140, L9: whatever runs it, pytest or a shell."""
    (finding,) = found(SOLID)
    assert (finding.code, finding.severity, finding.line) == ("sealed-answers-readable", "advice", 13)
    assert "$SEALED" in finding.message and "oracle" in finding.remedy


def test_the_three_tamperings_are_named(found: Lint) -> None:
    findings = found(SOLID.replace("sh $SEALED/golden/check.sh", "python -m pytest $SEALED/golden"))
    message = next(finding.message for finding in findings if finding.code == "judge-imports-candidate")
    assert "pytest's own internals" in message and "__eq__" in message and "caller" in message


def test_an_invariant_over_changes_protects_a_visible_check(found: Lint) -> None:
    open_tools = SOLID.replace('["src/**"]', '["**"]').replace(', forbid: ["tests/**"]', "")
    assert "writable-check" in codes(found(open_tools))
    rule = "  invariants: [{id: i, expr: \"!changes.exists(c, c.path.startsWith('tests/'))\"}]\n"
    assert "writable-check" not in codes(found(open_tools + rule))
    assert "writable-check" in codes(found(open_tools + rule.replace("{id: i,", "{id: i, severity: soft,")))


def test_more_than_thirty_turns_ask_for_a_seal(found: Lint) -> None:
    visible = SOLID.replace(GOLDEN, "")
    assert "long-without-seal" not in codes(found(visible + "  budget: {turns: 30}\n"))
    assert "long-without-seal" in codes(found(visible + "  budget: {turns: 31}\n"))
    assert "evidence-below-exposure" in codes(found(visible + "  budget: {turns: 100}\n"))


def test_an_unlimited_shell_is_named_where_nothing_protects_anything(found: Lint) -> None:
    bare = SOLID.replace(', forbid: ["tests/**"]', "").replace(
        '{tool: shell_exec, paths: ["src/**"]}', "{tool: shell_exec}"
    )
    assert "unlimited-shell" in codes(found(bare))


def test_an_environment_that_grants_more_than_the_task_needs(found: Lint) -> None:
    """R243: the incident of DEFINITIONS 8: the task needed A1/S2, the environment granted A3/S3."""
    text = SOLID.replace("workspace: .}", "workspace: ., sandbox: {tier: none}}")
    finding = next(finding for finding in found(text, tier="none") if finding.code == "authority-exceeds-need")
    assert "needs A1/S2" in finding.message and "grants A3/S3" in finding.message
    assert finding.remedy == "set sandbox.tier to namespaces"


def test_a_reading_task_needs_no_authority(load: Callable[[str], object], found: Lint) -> None:
    assert "authority-exceeds-need" not in codes(found(MINIMAL))
    assert needs(load(MINIMAL)).a == 0  # type: ignore[arg-type]


def test_closure_gaps_are_errors_and_come_first(found: Lint) -> None:
    findings = found(SOLID, tier="none")
    assert [finding.severity for finding in findings[:2]] == ["error", "error"]
    assert {"tier-below-contract", "no-containment"} <= set(codes(findings))


def test_findings_print_like_a_compiler(found: Lint) -> None:
    finding, _ = found(SOLID.replace("disclose: verdict", "disclose: names"))
    first, second = finding.render("task.yaml").splitlines()
    assert first.startswith("task.yaml:11:3: warning: every sealed check names its failures to the model")
    assert first.endswith(" [no-held-out-check]")
    assert second == "  add a sealed check with `disclose: verdict` or `disclose: none`"


def test_the_template_is_only_told_to_seal(found: Lint) -> None:
    assert codes(found(template())) == ["no-sealed-check"]


# The audit.


def rules_of(text: str, folder: Path) -> list[tuple[str, str]]:
    (manifest,) = manifests_of(text.encode(), file="t", directory=str(folder))
    return [(rule.rule, rule.mechanism) for rule in audit(manifest.task)]


def test_every_rule_of_the_published_example_has_a_mechanism(folder: Path) -> None:
    """R081"""
    (manifest,) = manifests_of(INTERFACE.encode(), file="t", directory=str(folder))
    rules = audit(manifest.task)
    assert is_closed(rules)
    assert all(rule.mechanism for rule in rules)
    paths = {rule.path for rule in rules}
    for wanted in (
        "spec.goal.forbid[1]",
        "spec.done[1]",
        "spec.invariants[0]",
        "spec.budget",
        "spec.observe.redact[0]",
    ):
        assert wanted in paths
    assert {"spec.environment.sandbox.limits", "spec.environment.sandbox.network", "spec.actions"} <= paths


@pytest.mark.parametrize(
    ("sentence", "closed"),
    [
        ("Do not change the public API.", False),
        ("Never edit generated code.", False),
        ("Fix it without touching the scheduler.", False),
        ("Leave the changelog untouched.", False),
        ("Use at most three helper functions.", False),
        ("Only change the parser.", False),
        ("Avoid globals.", True),  # a wish: flagged, not required
        ("Do not touch the tests.", True),  # held by goal.forbid
        ("Do not access the network.", True),  # held by the sandbox
        ("Only edit files in src.", True),  # held by the paths of file_edit
        ("The parser never raises.", True),  # about the wanted state, not about the work
        ("Negative timeout inputs are clamped to the default 5.0 s.", True),
    ],
)
def test_a_rule_in_words_needs_something_that_holds_it(folder: Path, sentence: str, closed: bool) -> None:
    """R081: `lint --closure` exits 1 when a required rule is prompt-only."""
    text = SOLID.replace("text: g", f"text: '{sentence}'")
    (manifest,) = manifests_of(text.encode(), file="t", directory=str(folder))
    assert is_closed(audit(manifest.task)) is closed


def test_a_wish_is_listed_as_prompt_only_but_not_required(folder: Path) -> None:
    text = SOLID.replace("text: g", "text: 'Fix it. Please avoid globals.'")
    (manifest,) = manifests_of(text.encode(), file="t", directory=str(folder))
    (rule,) = [rule for rule in audit(manifest.task) if rule.prompt_only]
    assert rule.rule == "Please avoid globals." and not rule.required


def test_an_invariant_that_speaks_of_the_same_thing_holds_a_sentence(folder: Path) -> None:
    text = SOLID.replace("text: g", "text: Do not change the public API.")
    rule = "  invariants: [{id: api-unchanged, run: python api_diff.py}]\n"
    (manifest,) = manifests_of((text + rule).encode(), file="t", directory=str(folder))
    assert is_closed(audit(manifest.task))
    assert ("Do not change the public API.", "invariants/api-unchanged") in rules_of(text + rule, folder)


def test_paths_beside_an_unbound_shell_are_said_to_hold_for_their_tool_alone(folder: Path) -> None:
    text = SOLID.replace('{tool: shell_exec, paths: ["src/**"]}', "{tool: shell_exec}")
    assert (
        "file_edit stays in src/**",
        "gate, for file_edit alone: shell_exec has no paths and may write elsewhere",
    ) in (rules_of(text, folder))


def test_a_proof_is_said_to_hold_over_its_domain_and_needs_no_held_out_twin(found: Lint, folder: Path) -> None:
    """R156, R145"""
    judge = "call = 'm:f'\ndef domain():\n    return [[1]]\ndef judge(arguments, outcome):\n    return None\n"
    (folder / "sealed/judge.py").write_text(judge)
    proven = SOLID.replace(GOLDEN, "    - {id: rule, oracle: judge.py, files: ./sealed, level: proof}\n")
    (finding,) = found(proven)
    assert (finding.code, finding.severity) == ("proof-over-domain", "advice")
    assert "over the finite domain its judge declares, and over nothing else" in finding.message

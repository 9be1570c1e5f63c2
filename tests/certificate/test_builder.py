"""A statement is built from evidence rows alone, or not at all."""

from __future__ import annotations

from setpoint.certificate import verify
from setpoint.kernel.contract import Budget
from setpoint.kernel.events import DriftFound, EvidenceRecorded, ModelFailed
from setpoint.phases.p6_verdict.certificate import Statement, Uncertifiable

from .factory import BASE, BYPASS, CLAIM, FIX, FIXED, KEY, Writer, history, task


def converged(failing: dict[str, int], level: str | None = None) -> Writer:
    """A short run that commits, whatever its evidence says."""
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 1}, phase="baseline")
    w.start([FIX])
    w.run(0, *FIX, "reversible", "src/config.py")
    w.judge(FIXED, failing)
    if level is not None:
        w.emit(EvidenceRecorded(check="done/golden", level=level, verdict="pass", fingerprint=FIXED, check_digest="c"))
    w.keep(1, FIXED, ["src/config.py"])
    w.commit(FIXED, ["src/config.py"])
    return w


def refused(writer: Writer) -> Uncertifiable:
    built = writer.statement()
    assert isinstance(built, Uncertifiable)
    return built


def test_a_converged_run_is_certified_at_the_level_its_evidence_reached() -> None:
    """R020 R149"""
    built = history().statement()
    assert isinstance(built, Statement)
    assert built.level == "sealed"
    assert built.predicate["level"]["weakest"] == "visible"


def test_an_unmet_criterion_or_soft_invariant_is_never_certified() -> None:
    """R020"""
    assert refused(converged({"done/golden": 2})).problems == ("done/golden: the newest evidence is 'fail'",)
    assert refused(converged({"invariants/small": 1})).problems == ("invariants/small: the newest evidence is 'fail'",)
    assert not refused(converged({"done/golden": 2})).verified


def test_a_lower_level_cannot_accept_and_a_judge_adds_none() -> None:
    """R150 R152"""
    for level in ("claim", "static", "visible"):
        (problem,) = refused(converged({}, level)).problems
        assert problem == f"done/golden: judged at level {level}, sealed is required"
    assert isinstance(converged({}, "proof").statement(), Statement)


def test_evidence_of_another_state_does_not_count() -> None:
    """L4"""
    w = converged({})
    w.emit(EvidenceRecorded(check="done/unit", level="visible", verdict="pass", fingerprint=BYPASS, check_digest="c"))
    assert refused(w).problems == ("done/unit: there is no evidence about the committed state",)


def test_a_claim_is_no_evidence() -> None:
    """R021 R144"""
    w = Writer(task())
    w.accept()
    w.judge(BASE, {"done/unit": 1}, phase="baseline")
    w.start([CLAIM])
    w.permit(0, *CLAIM, "pure")
    w.commit(BASE, [])
    assert refused(w).problems == ("done/unit: the newest evidence is 'fail'",)


def test_a_verified_run_over_budget_is_not_accepted() -> None:
    """R153"""
    w = history()
    w.task = task()
    w.emit(ModelFailed(route="x", kind="timeout", message="", input_tokens=300_000))
    no = refused(w)
    assert no.verified
    assert no.problems == ("303300 tokens were used, the ceiling is 200000",)
    assert Budget().tokens == 200_000


def test_evidence_from_before_the_workspace_drifted_does_not_count() -> None:
    """L4: other files changed under the commit, so what was judged is not what is there."""
    w = history()
    w.emit(DriftFound(what="workspace", expected="sha256:0", found="sha256:1", decision="judge_again"))
    assert "done/unit: there is no evidence about the committed state" in refused(w).problems
    w.judge(FIXED, {}, phase="final")
    assert isinstance(w.statement(), Statement)
    assert verify(w.bundle(), [KEY.public_key()]).valid


def test_without_a_commit_there_is_nothing_to_certify() -> None:
    w = Writer(task())
    w.accept()
    assert refused(w).problems == ("the log holds no accepted task or no commit",)
    assert refused(Writer(task())).problems == ("the log holds no accepted task or no commit",)

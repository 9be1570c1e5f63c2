"""Each suite finds adapters that break a promise. That sound ones pass is shown where our adapters run the suites."""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.test_conformance import TestPlain as PlainRoster
from tests.effects.test_conformance import FakeSide
from tests.proposers.test_conformance import play_scripted

from setpoint.adapters.approvers.roster import Roster
from setpoint.adapters.clock import SystemClock
from setpoint.adapters.sandboxes.opening import open_sandbox
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.adapters.verifiers.judge import CheckVerifier
from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.kernel.contract import Environment, Limits
from setpoint.kernel.effects import DidNotHappen, EffectDeclined, EffectInDoubt, EffectNotSent, Happened
from setpoint.kernel.errors import ChangeRejected, ProposerFault, SandboxFault
from setpoint.kernel.proposal import Reply
from setpoint.kernel.quorum import Entitled
from setpoint.ports.workspace import ChangeSet
from setpoint.testing.conformance import (
    ApproversSuite,
    ClockSuite,
    EffectorSuite,
    LogSuite,
    OtherSide,
    Played,
    ProposerSuite,
    SandboxSuite,
    VerifierSuite,
    WorkspaceSuite,
)

pytest_plugins = ["pytester"]


def fails(pytester: pytest.Pytester, suite: type, test: str) -> bool:
    """Whether that test of the suite fails: in a run of pytest of its own, as its author would run it."""
    pytester.makepyfile(f"import sys\nTestIt = getattr(sys.modules[{__name__!r}], {suite.__name__!r})\n")
    run = pytester.inline_run("-q", "-p", "no:cacheprovider", "-k", test)
    passed, skipped, failed = run.listoutcomes()
    if skipped and not passed and not failed:
        pytest.skip(f"{suite.__name__}.{test} is skipped on this machine")
    assert all(report.when == "call" for report in failed), [report.longreprtext for report in failed]
    assert passed or failed, f"{suite.__name__} has no test {test}"
    return bool(failed)


# Logs


class Memory(LogSuite):
    log: type[MemoryLog] = MemoryLog
    has_processes = False

    @pytest.fixture
    def open_log(self):
        return self.log


def log_that(**broken: Any) -> type[MemoryLog]:
    return type("Broken", (MemoryLog,), broken)


async def append_under_any_lease(self, lease, *arguments, **options):
    holder = self.holder(lease.stream)
    return await MemoryLog.append(self, holder or lease, *arguments, **options)


async def append_anywhere(self, lease, expected, *arguments, **options):
    return await MemoryLog.append(self, lease, self.head(lease.stream), *arguments, **options)


async def append_without(self, *arguments, beside=None, **options):
    return await MemoryLog.append(self, *arguments, beside=None, **options)


async def append_part(self, lease, expected, events, **options):
    return await MemoryLog.append(self, lease, expected, events[:1], **options)


class IgnoresFences(Memory):
    log = log_that(append=append_under_any_lease)


class IgnoresHeads(Memory):
    log = log_that(append=append_anywhere)


class IgnoresClaims(Memory):
    log = log_that(append=append_without)


class TearsAppends(Memory):
    log = log_that(append=append_part)


class DeliversTwice(Memory):
    log = log_that(deliver=lambda self, stream, key, data: MemoryLog.deliver(self, stream, key + str(data), data))


class KnowsEveryPayload(Memory):
    log = log_that(payload=lambda self, digest: b"")


class LeasesToAnybody(Memory):
    log = log_that(claim=lambda self, stream, owner, ttl_ms: MemoryLog.claim(self, stream, "me", ttl_ms))


class SleepsThroughMessages(Memory):
    log = log_that(
        due=lambda self, kind, now_ms, count: [one for one in MemoryLog.due(self, kind, now_ms, count) if one[1]]
    )


LOGS: list[tuple[type, str]] = [
    (IgnoresFences, "test_a_stale_worker_writes_nothing"),
    (IgnoresFences, "test_the_same_owner_claims_again_under_a_new_fence"),
    (IgnoresHeads, "test_an_append_at_another_head_is_refused_and_writes_nothing"),
    (IgnoresHeads, "test_of_two_tasks_at_one_head_exactly_one_appends"),
    (IgnoresClaims, "test_a_refused_claim_writes_nothing"),
    (IgnoresClaims, "test_whatever_is_asked_at_once_stands_as_if_asked_one_after_the_other"),
    (TearsAppends, "test_what_was_appended_is_read_back_chained"),
    (TearsAppends, "test_however_appends_of_several_streams_interleave_each_keeps_its_order"),
    (DeliversTwice, "test_messages_come_in_order_and_each_key_once"),
    (KnowsEveryPayload, "test_a_payload_is_found_by_its_digest_and_stored_once"),
    (LeasesToAnybody, "test_a_lease_is_exclusive_until_it_expires_and_each_claim_raises_the_fence"),
    (SleepsThroughMessages, "test_a_message_wakes_a_stream_that_has_a_wake_up_time_and_no_other"),
]


# Proposers


class Scripted(ProposerSuite):
    """A script behind a wrapper that spoils it."""

    has_script = True
    wrapper: type

    @pytest.fixture
    def play(self, tmp_path: Path):
        def play(acts: Sequence[Any]) -> Played:
            return Played(self.wrapper(play_scripted(acts, tmp_path, ExitStack()).proposer))

        return play


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner, self.route, self.limits = inner, inner.route, inner.limits

    async def propose(self, context: Any, deadline_ms: int) -> Reply:
        return await self.inner.propose(context, deadline_ms)

    async def close(self) -> None:
        await self.inner.close()


class Retries(Scripted):
    class wrapper(Wrapper):
        async def propose(self, context, deadline_ms):
            try:
                return await self.inner.propose(context, deadline_ms)
            except ProposerFault as fault:
                return await self.inner.propose(replace(context, cursor=fault.cursor), deadline_ms)


class BelievesTheModel(Scripted):
    class wrapper(Wrapper):
        async def propose(self, context, deadline_ms):
            reply = await self.inner.propose(context, deadline_ms)
            try:
                said = json.loads(reply.text)["usage"]
            except (ValueError, KeyError, TypeError):
                return reply
            return replace(reply, usage=replace(reply.usage, input_tokens=said["input_tokens"]))


class KeepsItsPosition(Scripted):
    class wrapper(Wrapper):
        asked = -1

        async def propose(self, context, deadline_ms):
            self.asked += 1
            return await self.inner.propose(replace(context, cursor=self.asked), deadline_ms)


class GivesHalfReplies(Scripted):
    class wrapper(Wrapper):
        async def propose(self, context, deadline_ms):
            try:
                return await self.inner.propose(context, deadline_ms)
            except ProposerFault as fault:
                return Reply("I was about to", cursor=fault.cursor)


class HidesTheCut(Scripted):
    class wrapper(Wrapper):
        async def propose(self, context, deadline_ms):
            return replace(await self.inner.propose(context, deadline_ms), stop="end_turn")


class TakesItsTime(Scripted):
    class wrapper(Wrapper):
        async def propose(self, context, deadline_ms):
            return await self.inner.propose(context, 20 * deadline_ms)


PROPOSERS: list[tuple[type, str]] = [
    (Retries, "test_a_failure_is_typed_and_never_retried_by_itself"),
    (BelievesTheModel, "test_usage_is_the_providers_report_whatever_the_text_says"),
    (KeepsItsPosition, "test_a_position_is_the_contexts_and_not_the_adapters"),
    (GivesHalfReplies, "test_a_stream_that_breaks_is_a_fault_and_the_next_call_works"),
    (HidesTheCut, "test_a_reply_cut_by_length_has_stop_length"),
    (TakesItsTime, "test_it_ends_by_the_deadline"),
]


# Approvers


class OfRoster(ApproversSuite):
    roster: Callable[[Roster, Any, Any], Any]

    sign = PlainRoster.sign
    honest = PlainRoster.make

    @pytest.fixture
    def make(self, honest):
        def make(people, clock):
            inner = honest(people, clock)
            broken = type(self).roster

            class Broken:
                def verify(self, signed, ticket):
                    return broken(inner, signed, ticket)

            return Broken()

        return make


class AcceptsAnything(OfRoster):
    @staticmethod
    def roster(inner, signed, ticket):
        return Entitled(signed.decision, frozenset(ticket.by), signed.key)


class AcceptsOtherForms(OfRoster):
    @staticmethod
    def roster(inner, signed, ticket):
        found = inner.verify(signed, ticket)
        if getattr(found, "reason", "") == "ALTERED":
            return Entitled(signed.decision, frozenset({"ops"}), signed.key)
        return found


class RaisesForOddBytes(OfRoster):
    @staticmethod
    def roster(inner, signed, ticket):
        signed.signature.encode("ascii")
        return inner.verify(signed, ticket)


APPROVERS: list[tuple[type, str]] = [
    (AcceptsAnything, "test_a_key_that_is_not_trusted_is_rejected"),
    (AcceptsAnything, "test_an_altered_decision_is_rejected"),
    (AcceptsAnything, "test_a_key_outside_its_validity_is_rejected_then_and_now"),
    (AcceptsAnything, "test_after_expiry_every_decision_is_rejected_as_expired"),
    (AcceptsAnything, "test_a_signer_without_a_role_of_the_ticket_is_rejected"),
    (AcceptsAnything, "test_the_requester_is_rejected_whatever_their_roles"),
    (AcceptsOtherForms, "test_a_ticket_changed_in_any_field_voids_the_decision"),
    (RaisesForOddBytes, "test_verifying_changes_nothing_and_answers_whatever_was_sent"),
]


# Effectors


class OverFake(EffectorSuite):
    effector: type

    @pytest.fixture
    def other(self) -> OtherSide:
        side: Any = FakeSide(dedups=True)
        side.effector = self.effector(side.effector)
        return side


class Spoiled:
    def __init__(self, inner: Any) -> None:
        self.inner, self.contract = inner, inner.contract

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class TriesAgain(OverFake):
    class effector(Spoiled):
        async def perform(self, context, arguments):
            try:
                return await self.inner.perform(context, arguments)
            except (EffectInDoubt, EffectNotSent):
                return await self.inner.perform(context, arguments)


class SendsAnotherKey(OverFake):
    class effector(Spoiled):
        async def perform(self, context, arguments):
            return await self.inner.perform(replace(context, key=f"{context.key}/{context.attempt}"), arguments)


class CallsDoubtNotSent(OverFake):
    class effector(Spoiled):
        async def perform(self, context, arguments):
            try:
                return await self.inner.perform(context, arguments)
            except EffectInDoubt as fault:
                raise EffectNotSent(str(fault)) from fault


class CallsNoDoubt(OverFake):
    class effector(Spoiled):
        async def perform(self, context, arguments):
            try:
                return await self.inner.perform(context, arguments)
            except EffectDeclined as fault:
                raise EffectInDoubt(str(fault)) from fault


class ProbeMutates(OverFake):
    class effector(Spoiled):
        async def probe(self, context, arguments):
            return Happened(await self.inner.perform(context, arguments))


class ProbeGuesses(OverFake):
    class effector(Spoiled):
        async def probe(self, context, arguments):
            try:
                return await self.inner.probe(context, arguments)
            except EffectNotSent:
                return DidNotHappen()


class TakesBackTwice(OverFake):
    class effector(Spoiled):
        told = 0

        async def compensate(self, context, arguments, result):
            self.told += 1
            return await self.inner.compensate(replace(context, key=f"{context.key}#{self.told}"), arguments, result)


class ReturnsObjects(OverFake):
    class effector(Spoiled):
        async def perform(self, context, arguments):
            await self.inner.perform(context, arguments)
            return (1, 2)


class KeyByChance(OverFake):
    class effector(Spoiled):
        def key(self, arguments):
            return f"pay:{id(arguments)}:{object()!r}"


EFFECTORS: list[tuple[type, str]] = [
    (TriesAgain, "test_it_never_tries_again_by_itself"),
    (SendsAnotherKey, "test_it_sends_the_key_of_the_call_and_never_another"),
    (CallsDoubtNotSent, "test_without_an_answer_it_is_in_doubt_whatever_became_of_it"),
    (CallsNoDoubt, "test_a_no_is_declined_and_there_is_no_effect"),
    (ProbeMutates, "test_a_probe_only_looks"),
    (ProbeMutates, "test_a_probe_says_what_became_of_a_request_that_failed"),
    (ProbeGuesses, "test_a_probe_that_could_not_look_says_so_and_is_asked_again"),
    (TakesBackTwice, "test_what_was_done_is_taken_back_once_however_often_it_is_told"),
    (TakesBackTwice, "test_a_way_back_that_failed_is_told_again_and_goes_once"),
    (ReturnsObjects, "test_perform_does_it_once_and_returns_plain_json"),
    (KeyByChance, "test_the_business_key_is_a_function_of_the_arguments"),
]


# Clocks


class InSeconds(ClockSuite):
    @pytest.fixture
    def clock(self):
        class Broken(SystemClock):
            def now_ms(self):
                return super().now_ms() // 1000

        return Broken()


class Backwards(ClockSuite):
    @pytest.fixture
    def clock(self):
        class Broken(SystemClock):
            def monotonic_ms(self):
                return -super().monotonic_ms()

            async def sleep_ms(self, ms):
                return None

            def new_id(self, prefix):
                return f"{prefix}-{10**6 - super().monotonic_ms() % 10**6}"

        return Broken()


CLOCKS: list[tuple[type, str]] = [
    (InSeconds, "test_now_is_in_milliseconds_since_the_epoch"),
    (Backwards, "test_after_a_sleep_at_least_so_much_has_passed"),
    (Backwards, "test_an_identifier_is_fresh_and_says_what_it_is_of"),
]


# Workspaces


class Workspaces(WorkspaceSuite):
    workspace: type

    @pytest.fixture
    def provider(self, tmp_path):
        inner = CopyWorkspaceProvider(tmp_path / "state")
        spoiled = self.workspace

        class Provider:
            def open(self, *arguments):
                return spoiled(inner.open(*arguments))

        return Provider()


class SpoiledWorkspace:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ForgetsToDiscard(Workspaces):
    class workspace(SpoiledWorkspace):
        def discard(self):
            return None


class BelievesStrings(Workspaces):
    class workspace(SpoiledWorkspace):
        def resolve(self, path):
            return posixpath.normpath(path).removeprefix("/workspace/")


class KeepsAnything(Workspaces):
    class workspace(SpoiledWorkspace):
        def attempt_changes(self):
            try:
                return self.inner.attempt_changes()
            except ChangeRejected:
                return ChangeSet((), "sha256:nothing")


WORKSPACES: list[tuple[type, str]] = [
    (ForgetsToDiscard, "test_discard_and_restore_bring_back_the_exact_staged_state"),
    (BelievesStrings, "test_a_path_resolves_where_it_leads_or_not_at_all"),
    (KeepsAnything, "test_special_files_and_depth_never_reach_a_savepoint"),
]


# Sandboxes: over the rung that confines nothing, so they can be broken on every machine.


class Unconfined(SandboxSuite):
    has_overlays, is_isolated, is_confined = False, False, False
    wrapper: type

    @pytest.fixture
    def sandbox(self, tmp_path):
        inner = open_sandbox("none", cache_dir=tmp_path / "cache", rung="none")
        yield self.wrapper(inner)
        asyncio.run(inner.close())


class SpoiledSandbox:
    def __init__(self, inner: Any) -> None:
        self.inner, self.report = inner, inner.report

    async def run(self, action: Any) -> Any:
        return await self.inner.run(action)


class RunsInTheOpen(Unconfined):
    is_isolated = True
    wrapper = SpoiledSandbox


class LeaksTheEnvironment(Unconfined):
    class wrapper(SpoiledSandbox):
        async def run(self, action):
            leaked = tuple((name, value) for name, value in os.environ.items() if name.startswith("SECRET"))
            return await self.inner.run(replace(action, env=(*action.env, *leaked)))


class KeepsAllOutput(Unconfined):
    class wrapper(SpoiledSandbox):
        async def run(self, action):
            return await self.inner.run(replace(action, limits=replace(action.limits, output_bytes=1 << 30)))


class RaisesForActions(Unconfined):
    class wrapper(SpoiledSandbox):
        async def run(self, action):
            done = await self.inner.run(action)
            if done.exit_code is None:
                raise SandboxFault("it did not end well")
            return done


SANDBOXES: list[tuple[type, str]] = [
    (RunsInTheOpen, "test_nothing_else_of_the_host_is_there"),
    (RunsInTheOpen, "test_process_mount_and_network_namespaces_are_its_own"),
    (LeaksTheEnvironment, "test_the_environment_is_exactly_the_fixed_minimum_plus_env"),
    (KeepsAllOutput, "test_output_is_clamped_to_head_and_tail_and_hashed_whole"),
    (RaisesForActions, "test_a_program_that_cannot_start_is_an_outcome"),
]


# Verifiers: over the same rung.


class Judges(VerifierSuite):
    has_overlays = False
    verifier: type = CheckVerifier

    @pytest.fixture
    def open_verifier(self, tmp_path):
        sandbox = open_sandbox("none", cache_dir=tmp_path / "cache", rung="none")
        limits = Limits(wall_ms=30_000)
        yield lambda workspace: self.verifier(sandbox, Environment(str(workspace), limits=limits))
        asyncio.run(sandbox.close())


class TakesMissingForPass(Judges):
    class verifier(CheckVerifier):
        async def judge(self, check, candidate, baseline_counts):
            evidence = await super().judge(check, candidate, baseline_counts)
            return replace(evidence, verdict="pass") if evidence.verdict == "missing" else evidence


class ForgetsTheBaseline(Judges):
    class verifier(CheckVerifier):
        async def judge(self, check, candidate, baseline_counts):
            return await super().judge(check, candidate, None)


class SignsAnything(Judges):
    class verifier(CheckVerifier):
        async def judge(self, check, candidate, baseline_counts):
            return replace(await super().judge(check, candidate, baseline_counts), check_digest="sha256:one")


class JudgesInTheOpen(Judges):
    """The judge is honest, and its sandbox lets everything through."""


class LeavesAReport(Judges):
    class verifier(CheckVerifier):
        async def judge(self, check, candidate, baseline_counts):
            root = getattr(candidate.view, "root", None) or candidate.view.lowers[0]
            (Path(root) / "report.xml").write_text("<testsuite/>")
            return await super().judge(check, candidate, baseline_counts)


VERIFIERS: list[tuple[type, str]] = [
    (TakesMissingForPass, "test_a_check_that_crashes_times_out_or_cannot_start_never_passes"),
    (TakesMissingForPass, "test_a_check_that_loses_its_report_never_passes"),
    (ForgetsTheBaseline, "test_a_check_that_collects_fewer_tests_than_the_baseline_never_passes"),
    (SignsAnything, "test_evidence_is_bound_to_the_state_and_to_the_check"),
    (JudgesInTheOpen, "test_the_network_is_off"),
    (LeavesAReport, "test_what_a_check_writes_reaches_nobody"),
]


BROKEN = [*LOGS, *PROPOSERS, *APPROVERS, *EFFECTORS, *CLOCKS, *WORKSPACES, *SANDBOXES, *VERIFIERS]


@pytest.mark.parametrize(("suite", "test"), BROKEN, ids=[f"{suite.__name__}-{test}" for suite, test in BROKEN])
def test_an_adapter_that_breaks_a_promise_fails_its_suite(pytester: pytest.Pytester, suite: type, test: str) -> None:
    assert fails(pytester, suite, test)

"""The promises of ``setpoint.ports.effector``, for capabilities that change something outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import pytest

from setpoint.kernel.effects import (
    DidNotHappen,
    EffectDeclined,
    EffectFault,
    EffectNotSent,
    Happened,
    InDoubt,
    is_mutation,
    outcome_of,
)
from setpoint.ports.effector import Context, Effector

KEY, UNDO_KEY = "conformance:1", "undo:conformance:1"
TIMEOUT_MS = 5_000

Trouble = Literal["declined", "not_sent", "lost_reply", "lost_request", "no_look"]
TROUBLES_OF_A_REQUEST: tuple[Trouble, ...] = get_args(Trouble)[:4]


class OtherSide(Protocol):
    """The outside world as the test sees and steers it, behind the effector's back."""

    effector: Effector
    arguments: Mapping[str, Any]
    """Arguments under which the effect goes well, under more than one key."""
    services: Mapping[str, Any]
    """What the effector finds in ``Context.services``."""

    def done(self) -> Sequence[str]:
        """The key of each time the effect was really done, in order. Taken back or not."""
        ...

    def undone(self) -> Sequence[str]:
        """The key of each time the effect was really taken back, in order."""
        ...

    def requests(self) -> int:
        """How many requests to do something, or to take it back, were made so far, whatever came of them."""
        ...

    def befall(self, trouble: Trouble) -> None:
        """What becomes of the next request.

        declined: the other side says no. not_sent: no connection, or a rate limit. lost_reply: it is done, and the
        answer never comes. lost_request: it is not done, and no answer comes. no_look: the next look gets no answer.
        """
        ...


def context(other: OtherSide, key: str = KEY, attempt: int = 1) -> Context:
    return Context("run-1", "pay", key, attempt, TIMEOUT_MS, services=other.services)


async def perform(other: OtherSide, key: str = KEY, attempt: int = 1) -> Any:
    return await other.effector.perform(context(other, key, attempt), dict(other.arguments))


async def look(other: OtherSide, key: str = KEY) -> Any:
    return await other.effector.probe(context(other, key), dict(other.arguments))


async def take_back(other: OtherSide, result: Any) -> Any:
    """As the runtime does: under a key of its own."""
    return await other.effector.compensate(context(other, UNDO_KEY), dict(other.arguments), result)


async def fault_of(doing: Awaitable[Any]) -> Exception:
    try:
        found = await doing
    except Exception as fault:  # noqa: BLE001  # an effector may raise anything; what, is the question
        return fault
    raise AssertionError(f"it answered {found!r}, as if nothing had gone wrong")


Body = Callable[[OtherSide], Awaitable[None]]


class EffectorSuite:
    """Every effector of a mutation keeps these. Override ``other``; what the contract does not declare is skipped.

        class TestRefunds(EffectorSuite):
            @pytest.fixture
            def other(self):
                with Bank() as bank:
                    yield BankAsSeenByTests(bank, issue_refund, {"order_id": "A-1", "cents": 100})

    ``other`` is made anew for each test, used on one event loop, and closed by the fixture. An effector made of
    ``statements`` is performed by the log, so it is ``StatementSuite`` that says whether they go down.
    """

    @pytest.fixture
    def other(self) -> OtherSide:
        """The effector, and a world with nothing done yet."""
        raise NotImplementedError("Override the fixture other: it returns your effector with its world (OtherSide).")

    @pytest.fixture
    def play(self, other: OtherSide) -> Callable[[Body], None]:
        """Runs ``async body(other)``."""
        if not is_mutation(other.effector.contract.effect):
            pytest.skip("it changes nothing, so there is nothing to promise")

        async def whole(body: Body) -> None:
            await body(other)

        return lambda body: asyncio.run(whole(body))

    def test_perform_does_it_once_and_returns_plain_json(self, play) -> None:
        """``perform`` returns plain JSON."""

        async def body(other: OtherSide) -> None:
            result = await perform(other)
            assert json.loads(json.dumps(result, allow_nan=False)) == result
            assert list(other.done()) == [KEY] and not other.undone()

        play(body)

    def test_it_sends_the_key_of_the_call_and_never_another(self, play) -> None:
        """It sends ``context.key`` to the other side, and never another key. R138"""

        async def body(other: OtherSide) -> None:
            await perform(other, "conformance:2")
            await perform(other, "conformance:3", attempt=2)
            assert list(other.done()) == ["conformance:2", "conformance:3"]

        play(body)

    def test_a_no_is_declined_and_there_is_no_effect(self, play) -> None:
        """The other side said no: EffectDeclined."""

        async def body(other: OtherSide) -> None:
            other.befall("declined")
            assert isinstance(await fault_of(perform(other)), EffectDeclined)
            assert not other.done()

        play(body)

    def test_what_surely_had_no_effect_is_not_sent(self, play) -> None:
        """Surely no effect: EffectNotSent."""

        async def body(other: OtherSide) -> None:
            other.befall("not_sent")
            assert isinstance(await fault_of(perform(other)), EffectNotSent)
            assert not other.done()

        play(body)

    @pytest.mark.parametrize("trouble", ["lost_reply", "lost_request"])
    def test_without_an_answer_it_is_in_doubt_whatever_became_of_it(self, play, trouble: Trouble) -> None:
        """EffectInDoubt, or any other exception, which counts as in doubt. R139"""

        async def body(other: OtherSide) -> None:
            other.befall(trouble)
            fault = await fault_of(perform(other))
            assert isinstance(outcome_of(fault, other.effector.contract.effect), InDoubt), repr(fault)
            assert list(other.done()) == ([KEY] if trouble == "lost_reply" else [])

        play(body)

    @pytest.mark.parametrize("trouble", TROUBLES_OF_A_REQUEST)
    def test_it_never_tries_again_by_itself(self, play, trouble: Trouble) -> None:
        """It never tries again by itself: the runtime records every attempt."""

        async def body(other: OtherSide) -> None:
            other.befall(trouble)
            await fault_of(perform(other))
            assert other.requests() == 1

        play(body)

    def test_a_side_that_remembers_keys_acts_once_and_gives_the_same_receipt(self, play, other: OtherSide) -> None:
        if not other.effector.contract.dedups:
            pytest.skip("the contract does not say that the other side remembers keys")

        async def body(other: OtherSide) -> None:
            first = await perform(other)
            assert await perform(other, attempt=2) == first
            assert list(other.done()) == [KEY]

        play(body)

    def test_a_side_that_remembers_keys_may_be_told_again_after_a_lost_reply(self, play, other: OtherSide) -> None:
        if not other.effector.contract.dedups:
            pytest.skip("the contract does not say that the other side remembers keys")

        async def body(other: OtherSide) -> None:
            other.befall("lost_reply")
            await fault_of(perform(other))
            await perform(other, attempt=2)
            assert list(other.done()) == [KEY]

        play(body)

    # Looking

    @pytest.fixture
    def probing(self, play, other: OtherSide) -> Callable[[Body], None]:
        if not other.effector.contract.has_probe:
            pytest.skip("the contract declares no probe")
        return play

    def test_a_probe_finds_what_was_done_and_nothing_else(self, probing) -> None:
        """What a read-only look at the world says: DidNotHappen before, Happened after, with the receipt."""

        async def body(other: OtherSide) -> None:
            assert await look(other) == DidNotHappen()
            result = await perform(other)
            assert await look(other) == Happened(result)
            assert await look(other, "conformance:other") == DidNotHappen()

        probing(body)

    @pytest.mark.parametrize("trouble", TROUBLES_OF_A_REQUEST)
    def test_a_probe_says_what_became_of_a_request_that_failed(self, probing, trouble: Trouble) -> None:
        """R139"""

        async def body(other: OtherSide) -> None:
            other.befall(trouble)
            await fault_of(perform(other))
            found = await look(other)
            assert isinstance(found, Happened if trouble == "lost_reply" else DidNotHappen)

        probing(body)

    def test_a_probe_only_looks(self, probing) -> None:
        """``probe`` only looks."""

        async def body(other: OtherSide) -> None:
            for done in ([], [KEY]):
                before = other.requests()
                answers = [await look(other) for _ in range(3)]
                assert answers == [answers[0]] * 3
                assert (list(other.done()), list(other.undone()), other.requests()) == (done, [], before)
                if not done:
                    await perform(other)

        probing(body)

    def test_a_probe_that_could_not_look_says_so_and_is_asked_again(self, probing) -> None:
        """A probe that could not look at all raises EffectNotSent; it never answers that nothing happened."""

        async def body(other: OtherSide) -> None:
            await perform(other)
            other.befall("no_look")
            assert isinstance(await fault_of(look(other)), EffectNotSent)

        probing(body)

    # Taking back

    @pytest.fixture
    def undoing(self, play, other: OtherSide) -> Callable[[Body], None]:
        if not other.effector.contract.has_compensator:
            pytest.skip("the contract declares no compensator")
        return play

    def test_what_was_done_is_taken_back_once_however_often_it_is_told(self, undoing) -> None:
        """``compensate`` may be told twice for the same key."""

        async def body(other: OtherSide) -> None:
            result = await perform(other)
            for _ in range(3):
                done = await take_back(other, result)
                assert json.loads(json.dumps(done, allow_nan=False)) == done
            assert (list(other.done()), list(other.undone())) == ([KEY], [UNDO_KEY])

        undoing(body)

    @pytest.mark.parametrize("trouble", ["not_sent", "lost_reply", "lost_request"])
    def test_a_way_back_that_failed_is_told_again_and_goes_once(self, undoing, trouble: Trouble) -> None:
        """``compensate`` may be told twice for the same key, also when nobody knows what became of the first time."""

        async def body(other: OtherSide) -> None:
            result = await perform(other)
            other.befall(trouble)
            assert not isinstance(await fault_of(take_back(other, result)), EffectDeclined)
            await take_back(other, result)
            assert list(other.undone()) == [UNDO_KEY]

        undoing(body)

    # The key of the author's

    def test_the_business_key_is_a_function_of_the_arguments(self, other: OtherSide) -> None:
        """The author's business key for these arguments, None when none was declared."""
        first, again = (other.effector.key(dict(other.arguments)) for _ in range(2))
        assert first == again
        assert (isinstance(first, str) and first != "") if other.effector.contract.has_key else first is None

    def test_the_faults_it_raises_say_what_is_known_of_the_effect(self, play) -> None:
        async def body(other: OtherSide) -> None:
            known_of: dict[Trouble, str] = {"declined": "settled", "not_sent": "not_sent"}
            for trouble, known in known_of.items():
                other.befall(trouble)
                fault = await fault_of(perform(other))
                assert isinstance(fault, EffectFault) and fault.message and fault.effect == known

        play(body)

"""One message, from its receipt to its answer: project, offer, ask, rule, do, observe, again; bounded by the budget.

Two appends a round: what happened so far goes down before a model is asked, its reply together with what it intends.
A recorded reply is never asked for again, and a recorded intent is carried out whatever crashed in between: the record
alone says where to go on. Nothing a reply says has an effect unless ``kernel.actions.rule`` names an action.
"""

from __future__ import annotations

from collections.abc import Sequence

from setpoint.engine.control import read_request
from setpoint.engine.sessions.asking import ask_model, recorded_reply
from setpoint.engine.sessions.doing import act, carry_out
from setpoint.engine.sessions.hand import Ended, SessionHand
from setpoint.engine.sessions.journal import stream_of
from setpoint.engine.sessions.projection import built, project
from setpoint.kernel.actions import (
    Action,
    AgentTerms,
    Case,
    Catalogue,
    Denied,
    RunView,
    catalogue,
    offered,
    rule,
)
from setpoint.kernel.events import ControlApplied, ControlRequested, QuestionAnswered, Refused
from setpoint.kernel.keys import digest_exact
from setpoint.kernel.proposal import Call, Malformed, Reply
from setpoint.kernel.session_events import ActionsOffered, MessageAnswered, ReplySettled, RunEnded
from setpoint.kernel.spelling import encodable
from setpoint.phases.p1_context.compaction import ContextTooLarge
from setpoint.phases.p2_proposal.parse import parse_reply
from setpoint.phases.p3_gate.schema import violation
from setpoint.ports.proposer import Context


async def see_through(hand: SessionHand) -> None:
    """Bring the open message to its end. Wherever an earlier owner died, this goes on from its last recorded fact."""
    while hand.message.is_open:
        if hand.message.pending is None:
            await _ask(hand)
        else:
            await _settle(hand)
    await hand.journal.write()


# Asking


async def _ask(hand: SessionHand) -> None:
    if hand.record.is_expired(hand.clock.now_ms()):
        words = "the session has expired; nothing is done in its name any more"
        hand.journal.add(Refused(ordinal=0, tool="turn", gate="authority", reason="EXPIRED", message=words))
        return await end(hand, "refused", "EXPIRED")
    take_answers(hand)
    await hand.hydrate(hand.journal)
    runs = note_runs(hand)
    record = hand.record
    if not hand.proposers:
        return await end(hand, "failed", "no model is given")
    terms = hand.agent.terms(record)
    now = catalogue(record, runs, terms)
    actions = offered(now, record.scopes)
    try:
        context = project(hand, terms, actions, runs)
    except ContextTooLarge as fault:  # of what the agent's own projection gives; asking again would not help
        return await end(hand, "failed", fault.message)
    if over := over_budget(hand, terms, context):
        return await end(hand, "budget_exhausted", over)
    hand.journal.add(built(context))
    hand.journal.add(ActionsOffered(version=now.version, actions=[action.name for action in actions]))
    await hand.journal.write()  # what was said and done so far: a model may think for minutes
    if failed := await ask_model(hand, context):
        return await end(hand, "failed", failed)
    return None


def take_answers(hand: SessionHand) -> None:
    """Record what people said since: an answer to the question that is open, and nothing else, has an effect."""
    journal = hand.journal
    stream = stream_of(hand.record.session_id)
    for position, key, data in journal.log.inbox(stream, hand.record.inbox_position):
        request = read_request(data)
        said = encodable(request.argument)
        journal.add(
            ControlRequested(request_id=key, action=request.action, by=request.by, argument=said, position=position)
        )
        question = hand.record.question
        applies = request.action == "answer" and question is not None and question.question_id == key
        if applies:
            journal.add(QuestionAnswered(question_id=key, answer=said, by=request.by))
        journal.add(ControlApplied(request_id=key, action="answer" if applies else "none"))


def over_budget(hand: SessionHand, terms: AgentTerms, context: Context) -> str:
    """Which ceiling another call would break, "" when none: it is checked before anything is spent."""
    record, budget = hand.record, terms.budget
    if hand.message.step >= budget.turns:
        return f"turns: {hand.message.step} replies for this message, and {budget.turns} may be"
    last_in, last_out, last_usd = record.last_call
    grown = max(0, context.tokens - record.prompt_tokens)
    tokens = last_in + grown + last_out if record.spent.model_calls else context.tokens
    if record.spent.tokens + tokens > budget.tokens:
        return f"tokens: {record.spent.tokens} are spent, a call needs about {tokens}; the ceiling is {budget.tokens}"
    if record.spent.usd_micros + last_usd > budget.usd_micros:
        return (
            f"usd: ${record.spent.usd_micros / 1e6:.4f} are spent, a call costs about ${last_usd / 1e6:.4f}; "
            f"the ceiling is ${budget.usd_micros / 1e6:.4f}"
        )
    return ""


async def end(hand: SessionHand, status: str, reason: str, text: str = "") -> None:
    """The turn is over, durably."""
    spilled = hand.journal.spill_text(text)
    await hand.journal.write(MessageAnswered(status=status, text=spilled, reason=encodable(reason)[:1000]))


def note_runs(hand: SessionHand) -> list[RunView]:
    """The open runs as they are; those that have ended become facts of the session."""
    views: list[RunView] = []
    for run_id in hand.record.runs:
        match hand.runs.look(run_id):
            case RunView() as view:
                views.append(view)
            case Ended() as ended:
                hand.journal.add(_ended(hand, ended))
    return views


def _ended(hand: SessionHand, ended: Ended) -> RunEnded:
    output, ref = hand.journal.spill(ended.output)
    return RunEnded(
        run_id=ended.run_id,
        workflow=ended.workflow,
        state=ended.state,
        reason=ended.reason,
        message=encodable(ended.message)[:1000],
        code=ended.code,
        output=output,
        output_ref=ref,
        input_tokens=ended.input_tokens,
        output_tokens=ended.output_tokens,
        usd_micros=ended.usd_micros,
    )


# Ruling and doing


async def _settle(hand: SessionHand) -> None:
    """See every call of the recorded reply through: refused, or intended and done."""
    for call in calls_of(recorded_reply(hand)):
        before = next((one for one in hand.message.of_step() if one.ordinal == call.ordinal), None)
        if before is None:
            await _rule_on(hand, call)
        elif before.status == "intended":
            await carry_out(hand, before)
        if not hand.message.is_open:
            return
    hand.journal.add(ReplySettled())


async def _rule_on(hand: SessionHand, call: Call | Malformed) -> None:
    if isinstance(call, Malformed):
        return _refuse(hand, call, Denied("schema", "MALFORMED", f"{call.reason}: {call.message}", call.pointer))
    ruled = rule(call, _case(hand, note_runs(hand)))
    if isinstance(ruled, Denied):
        return _refuse(hand, call, ruled)
    return await act(hand, call, ruled)


def _case(hand: SessionHand, runs: Sequence[RunView]) -> Case:
    record, agent = hand.record, hand.agent
    terms = agent.terms(record)
    now: Catalogue = catalogue(record, runs, terms)

    def refusal(action: Action, arguments: dict[str, object]) -> str:
        return agent.refusal(action, arguments, record)

    return Case(
        record,
        terms,
        now,
        hand.message.decided_on,
        hand.clock.now_ms(),
        violation,
        refusal,
        any(one.status != "refused" for one in hand.message.of_step()),
    )


def _refuse(hand: SessionHand, call: Call | Malformed, denied: Denied) -> None:
    hand.journal.add(
        Refused(
            ordinal=call.ordinal,
            tool=encodable(call.name),
            gate=denied.gate,
            reason=denied.reason,
            message=encodable(denied.message)[:600],
            pointer=encodable(denied.pointer),
            call_digest=call.digest if isinstance(call, Call) else "",
        )
    )


def calls_of(reply: Reply) -> Sequence[Call | Malformed]:
    """The calls of a reply. One that is only text says it to the user: it is ruled on like any other."""
    proposal = parse_reply(reply)
    if proposal.calls:
        return proposal.calls
    if not proposal.thought.strip():
        return (Malformed(0, "", "no_call", "", "the reply holds neither a call nor a text"),)
    arguments = {"text": proposal.thought}
    return (Call(0, "answer_user", arguments, digest_exact(["answer_user", arguments])),)


__all__ = ["see_through"]

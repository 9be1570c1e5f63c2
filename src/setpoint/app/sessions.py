"""Sessions of one application: opened for a principal, given messages, answered by an agent, taken up again.

A session is a stream beside the runs. Whoever works on one holds its lease; what it decides names the version it was
decided on, so that of two that decide at once one is told so and has done nothing (R043).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from setpoint.app.agent import Agent, AgentAtWork, Models
from setpoint.app.reached_runs import LOOK_MS, TURN_PATIENCE_MS, ReachedRuns
from setpoint.app.runs import Runs
from setpoint.app.session import Hydrator, Session, hydrate
from setpoint.app.turn_reply import ActionTaken, TurnReply, read_reply
from setpoint.app.typed import DefinitionFault
from setpoint.engine.control import Request, encode_request, read_request
from setpoint.engine.sessions.hand import Ended, SessionHand
from setpoint.engine.sessions.journal import KIND, Observer, SessionJournal, read_session, stream_of
from setpoint.engine.sessions.owning import Owning, conflict
from setpoint.engine.sessions.tokens import PromptTokens, prompt_tokens
from setpoint.engine.sessions.turn import see_through
from setpoint.kernel import limits
from setpoint.kernel.actions import Catalogue, RunView, catalogue, offered
from setpoint.kernel.errors import (
    ConflictFault,
    IllegalTransition,
    StoreFault,
    UsageFault,
)
from setpoint.kernel.keys import digest
from setpoint.kernel.session_events import MessageReceived, SessionOpened, SessionRenewed, decode
from setpoint.kernel.session_record import SessionRecord
from setpoint.kernel.spelling import encodable
from setpoint.kernel.units import parse_duration_ms
from setpoint.ports.clock import Clock
from setpoint.ports.log import Log
from setpoint.ports.proposer import Proposer
from setpoint.version import VERSION

if TYPE_CHECKING:
    from setpoint.app.application import App

EXPIRES = "24h"
"""How long a session lasts when the host does not say: a day's work."""
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}")


@dataclass(slots=True)
class Sessions:
    """The sessions and agents of one application over one store."""

    app: App
    runs: Runs
    open_route: Callable[[str], Proposer]
    models: Models | None = None
    """Instead of those the agents declare."""
    patience_ms: int = TURN_PATIENCE_MS
    observer: Observer | None = None
    _agents: dict[str, AgentAtWork] = field(default_factory=dict[str, AgentAtWork], init=False)
    _opened: dict[str, Proposer] = field(default_factory=dict[str, Proposer], init=False)
    _reached: ReachedRuns = field(init=False)
    _owning: Owning = field(init=False)

    def __post_init__(self) -> None:
        self._reached = ReachedRuns(self.runs, self.patience_ms)
        self._owning = Owning(self.runs.log, self.runs.clock, self.runs.owner, self.observer)
        programs = {
            (program.definition.name, program.definition.version): program for program in self.runs.programs.values()
        }
        workflows = {
            (one.name, one.version): (one, programs[one.name, one.version])
            for one in self.app.workflows
            if (one.name, one.version) in programs
        }
        for agent in self.app.agents:
            self._agents[agent.name] = AgentAtWork(agent, workflows, self._view)

    @property
    def log(self) -> Log:
        return self.runs.log

    @property
    def clock(self) -> Clock:
        return self.runs.clock

    @property
    def hydrators(self) -> Mapping[str, Hydrator]:
        return self.app.hydrators

    # Opening

    async def open(
        self,
        session_id: str,
        *,
        principal: str,
        tenant: str = "",
        scopes: Sequence[str] | None = None,
        expires: str | None = None,
    ) -> Session:
        """The session of that id, opened for this principal when it is new; its context is hydrated.

        ``scopes`` and ``expires`` are the host's word and are recorded when they change; ``expires`` counts from now
        as soon as less than half of it is left. Without them an existing session stays as it is. UsageFault when it is
        somebody else's.
        """
        if not SESSION_ID.fullmatch(session_id):
            raise UsageFault(
                f"{session_id!r} is no id of a session: letters, digits, _ . : @ - and at most 128 of them"
            )
        if not principal:
            raise UsageFault(f"session {session_id} needs a principal: who acts through it")
        stream = stream_of(session_id)
        with contextlib.suppress(StoreFault):  # it exists
            self.log.create(stream, KIND)
        if self.log.head(stream).seq:
            record, _ = read_session(self.log, session_id)
            _refuse_other(record, principal, tenant)
            if not self._wants_writing(record, scopes, expires):
                return self._view(record)
        try:
            async with self._owning.hold(session_id) as journal:
                self._open_or_renew(journal, principal, tenant, scopes, expires)
                if not journal.record.is_expired(self.clock.now_ms()):
                    await self._hydrate(journal)
                await journal.write()
                return self._view(journal.record)
        except ConflictFault:
            return await self._as_it_is(session_id, principal, tenant, scopes)

    async def _as_it_is(self, session_id: str, principal: str, tenant: str, scopes: Sequence[str] | None) -> Session:
        """The session while another works on it, who also keeps it fresh. ConflictFault when its scopes would have to
        change, or when it is not opened yet after a while."""
        stream = stream_of(session_id)
        for _ in range(TURN_PATIENCE_MS // LOOK_MS):
            if self.log.head(stream).seq:
                break
            await self.clock.sleep_ms(LOOK_MS)
        else:
            raise conflict(session_id, "it is being opened, and that takes too long")
        record, _ = read_session(self.log, session_id)
        _refuse_other(record, principal, tenant)
        if scopes is not None and set(scopes) != set(record.scopes):
            raise conflict(session_id, "its scopes cannot be changed in the middle of a turn; open it again later")
        return self._view(record)

    def _wants_writing(self, record: SessionRecord, scopes: Sequence[str] | None, expires: str | None) -> bool:
        now = self.clock.now_ms()
        if scopes is not None and set(scopes) != set(record.scopes):
            return True
        if expires is not None and record.expires_at_ms - now < _duration(expires) // 2:
            return True
        if record.is_expired(now) or self.log.holder(stream_of(record.session_id)) is not None:
            return False  # who works on it now refreshes it
        known = record.context
        return any(name not in known or now - known[name].at_ms >= one.fresh_ms for name, one in self.hydrators.items())

    def _open_or_renew(
        self, journal: SessionJournal, principal: str, tenant: str, scopes: Sequence[str] | None, expires: str | None
    ) -> None:
        record, now = journal.record, self.clock.now_ms()
        if record.seq == 0:
            journal.add(
                SessionOpened(
                    principal=principal,
                    tenant=tenant,
                    expires_at_ms=now + _duration(expires or EXPIRES),
                    scopes=sorted(scopes or ()),
                    app=self.app.name,
                    runtime=VERSION,
                )
            )
            return
        _refuse_other(record, principal, tenant)
        held = sorted(record.scopes if scopes is None else set(scopes))
        until = record.expires_at_ms
        if expires is not None and until - now < _duration(expires) // 2:
            until = now + _duration(expires)
        if (held, until) != (sorted(record.scopes), record.expires_at_ms):
            journal.add(SessionRenewed(expires_at_ms=until, scopes=held))

    # Turns

    async def turn(self, agent: Agent, session: Session, text: str, *, key: str = "") -> TurnReply:
        """Give the agent a message and see it through to its answer.

        ConflictFault (STALE_ACTION) when the session has moved on since ``session`` was read, or is worked on
        elsewhere: nothing was done. A message whose turn an earlier process left in the middle is taken up where its
        log ends; a ``key`` of one's own makes a message that is sent twice one message.
        """
        at_work = self._at_work(agent.name)
        if at_work.agent is not agent:
            raise DefinitionFault(f"{agent.name} is an agent of another application than {self.app.name}")
        if not text.strip():
            raise UsageFault("the message is empty; nothing was asked")
        if len(text) > limits.MESSAGE_BYTES_MAX:
            raise UsageFault(f"the message has {len(text)} characters; it may have {limits.MESSAGE_BYTES_MAX}")
        async with self._owning.hold(session.id) as journal:
            known, said = journal.record, digest(encodable(text))
            message = known.current
            is_same = message is not None and (message.agent, message.digest, message.key) == (agent.name, said, key)
            if message is not None and message.is_open:  # its owner died
                await self._see_through(journal, message.agent)
                is_done = is_same
            else:
                is_done = is_same and key != ""  # sent twice; without a key it is said again
            if not is_done:
                if key and key in known.keys:
                    raise ConflictFault(f"a message of key {key!r} was given to session {session.id} before")
                _refuse_stale(session, known)
                self._receive(journal, at_work, text, key=key)
                await self._see_through(journal, agent.name)
            session.moved_to(journal.record)
            return read_reply(journal, self._reached)

    async def resume(self, session_id: str) -> TurnReply | None:
        """Go on with a session: a turn that was left in the middle, an answer of the operator's, a run that went on.

        None when there is nothing that its agent has not seen.
        """
        async with self._owning.hold(session_id) as journal:
            message = journal.record.current
            if message is None:
                return None
            if not message.is_open:
                news = self._news(journal.record)
                if not news:
                    return None
                self._receive(journal, self._at_work(message.agent), news, by="runtime")
            await self._see_through(journal, message.agent)
            return read_reply(journal, self._reached)

    def answer(self, session_id: str, text: str, *, by: str) -> None:
        """Answer what an agent has asked the operator; its next turn, or ``resume``, sees it. IllegalTransition when
        it has asked nothing."""
        record, _ = read_session(self.log, session_id)
        if record.question is None:
            raise IllegalTransition(f"the agent of session {session_id} has asked nothing")
        if len(text) > limits.MESSAGE_BYTES_MAX:
            raise UsageFault(f"the answer has {len(text)} characters; it may have {limits.MESSAGE_BYTES_MAX}")
        request = Request("answer", by, text)
        if not self.log.deliver(stream_of(session_id), record.question.question_id, encode_request(request)):
            raise IllegalTransition(f"{record.question.question_id} of session {session_id} is answered already")

    def _receive(
        self, journal: SessionJournal, at_work: AgentAtWork, text: str, *, key: str = "", by: str = ""
    ) -> None:
        text = encodable(text)
        journal.add(
            MessageReceived(
                turn=journal.record.turn + 1,
                agent=at_work.agent.name,
                agent_digest=at_work.terms(journal.record).digest,
                message=journal.spill_text(text),
                message_digest=digest(text),
                key=key,
                by=by,
            )
        )

    def _news(self, record: SessionRecord) -> str:
        """What happened since the last turn that the agent was not told."""
        lines: list[str] = []
        unread = self.log.inbox(stream_of(record.session_id), record.inbox_position)
        if record.question is not None and any(read_request(data).action == "answer" for _, _, data in unread):
            lines.append("The operator has answered the question.")
        for run_id in record.runs:
            if isinstance(run := self._reached.look(run_id), Ended):
                lines.append(f"{run.run_id} of {run.workflow} is {run.state}.")
        return "\n".join(lines)

    async def _see_through(self, journal: SessionJournal, agent: str) -> None:
        at_work = self._at_work(agent)
        hand = SessionHand(
            journal,
            self.clock,
            at_work,
            self._reached,
            self._proposers(at_work.agent),
            self._hydrate,
            self.runs.shared.slots,
        )
        await see_through(hand)

    def _at_work(self, name: str) -> AgentAtWork:
        found = self._agents.get(name)
        if found is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise DefinitionFault(f"{self.app.name} declares no agent {name!r}; it declares {known}")
        return found

    async def _hydrate(self, journal: SessionJournal) -> None:
        await hydrate(journal, self.hydrators, self.clock.now_ms(), self.runs.services)

    def _proposers(self, agent: Agent) -> Sequence[Proposer]:
        return [self._proposer(one) for one in (agent.models if self.models is None else self.models)]

    def _proposer(self, model: str | Proposer) -> Proposer:
        if not isinstance(model, str):
            return model
        if model not in self._opened:
            self._opened[model] = self.open_route(model)
        return self._opened[model]

    def first_of(self, models: Models | None) -> Callable[[], Proposer | None]:
        """The first of these models, opened when it is first needed."""
        return lambda: self._proposer(models[0]) if models else None

    # Looking

    def record(self, session_id: str) -> SessionRecord:
        """Fold the session. UnknownTrajectory when there is none."""
        return read_session(self.log, session_id)[0]

    def tokens(self, session_id: str) -> PromptTokens:
        """What every prompt of the session had, and what a transcript in its place would have had."""
        events = [decode(stored.type, stored.data) for stored in self.log.read(stream_of(session_id))]
        return prompt_tokens(events, lambda text: text if isinstance(text, str) else self._payload(text.ref))

    def _payload(self, digest: str) -> str:
        return self.log.payload(digest).decode()

    def actions(self, agent: Agent, session: Session) -> Catalogue:
        """What the agent would be offered now, and the version of the state that it is offered in."""
        record = self.record(session.id)
        runs = [view for run_id in record.runs if isinstance(view := self._reached.look(run_id), RunView)]
        found = catalogue(record, runs, self._at_work(agent.name).terms(record))
        is_expired = record.is_expired(self.clock.now_ms())
        return Catalogue(found.version, () if is_expired else offered(found, record.scopes))

    def _view(self, record: SessionRecord) -> Session:
        return Session(record, self.hydrators, self._value)

    def _value(self, inline: Any, ref: Any) -> Any:
        return inline if ref is None else msgspec.json.decode(self.log.payload(ref.ref))

    async def close(self) -> None:
        for proposer in self._opened.values():
            await proposer.close()
        self._opened.clear()


def _refuse_other(record: SessionRecord, principal: str, tenant: str) -> None:
    if (record.principal, record.tenant) != (principal, tenant):
        raise UsageFault(
            f"session {record.session_id} is not {principal}'s; nothing of it was read",
            hint="A session has one principal and one tenant for as long as it is kept. Open another one.",
        )


def _refuse_stale(session: Session, record: SessionRecord) -> None:
    if session.version != record.version:
        raise ConflictFault(
            f"STALE_ACTION: session {session.id} was read at version {session.version} and is at {record.version} now; "
            f"nothing was done",
            hint="Read it again with runtime.session(...), look at what changed, and give the message again.",
        )


def _duration(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as fault:
        raise UsageFault(f"expires: {fault}") from fault


__all__ = ["ActionTaken", "Sessions", "TurnReply"]

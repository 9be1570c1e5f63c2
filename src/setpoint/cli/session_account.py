"""What the log knows of a session of an agent: enough to list it. Its runs are listed beside it."""

from __future__ import annotations

from typing import Any

from setpoint.app.runtime import Runtime
from setpoint.cli.finding import me
from setpoint.engine.control import Request, encode_request
from setpoint.engine.journal import timestamp
from setpoint.engine.sessions.journal import KIND, read_session, stream_of
from setpoint.kernel import limits
from setpoint.kernel.errors import IllegalTransition, LogCorrupt, UsageFault
from setpoint.kernel.session_record import SessionRecord


def summary(runtime: Runtime, stream: str) -> dict[str, Any]:
    """What `get` lists of a session, as a document."""
    session_id = stream.removeprefix(f"{KIND}:")
    try:
        record, _ = read_session(runtime.log, session_id)
    except LogCorrupt as fault:
        return _document(SessionRecord(session_id=session_id), stream) | {"status": "corrupt", "reason": fault.message}
    status = "expired" if record.is_expired(runtime.clock.now_ms()) else "open"
    if record.current is not None and record.current.is_open:
        status = "answering" if runtime.is_owned(stream) else "interrupted"
    if record.question is not None:
        status = "asks"
    reason = record.question.question if record.question is not None else ""
    return _document(record, stream) | {"status": status, "reason": reason}


def answer(runtime: Runtime, typed: str, text: str) -> dict[str, Any]:
    """Leave the operator's answer to what an agent asked. IllegalTransition when it asked nothing, or was answered."""
    session_id = typed.removeprefix(f"{KIND}:")
    record, _ = read_session(runtime.log, session_id)
    if record.question is None:
        raise IllegalTransition(f"the agent of session {session_id} has asked nothing")
    if len(text) > limits.MESSAGE_BYTES_MAX:
        raise UsageFault(f"the answer has {len(text)} characters; it may have {limits.MESSAGE_BYTES_MAX}")
    question = record.question
    request = encode_request(Request("answer", me(), text))
    # Under the key of the question, as `Sessions.answer` does: whoever answers first has answered.
    if not runtime.log.deliver(stream_of(session_id), question.question_id, request):
        raise IllegalTransition(f"{question.question_id} of session {session_id} is answered already")
    return {
        "session_id": session_id,
        "stream": stream_of(session_id),
        "question_id": question.question_id,
        "question": question.question,
        "answer": text,
    }


def _document(record: SessionRecord, stream: str) -> dict[str, Any]:
    return {
        "session_id": record.session_id,
        "stream": stream,
        "app": record.app,
        "status": "",
        "turn": record.turn,
        "principal": record.principal,
        "tenant": record.tenant or None,
        "expires_at": timestamp(record.expires_at_ms),
        "runs": sorted(record.runs),
        "reason": "",
        "exit_code": None,
        "updated_at": record.last_event_at,
    }

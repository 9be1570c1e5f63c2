"""Replies of a model, written as a test would say them.

ReplyProposer([reply(call("file_write", path="a", content="1"), claim())])
"""

from __future__ import annotations

import json
from typing import Any

from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.proposal import RawCall, Reply, StopReason, Usage
from setpoint.ports.proposer import Context, RouteLimits

USAGE = Usage(1000, 100, 0, 4000)


def call(name: str, **arguments: Any) -> RawCall:
    """One tool call, its arguments as the JSON text a provider sends."""
    return RawCall(name, json.dumps(arguments))


def claim(summary: str = "done") -> RawCall:
    return call("complete_task", summary=summary)


def reply(*calls: RawCall, text: str = "", stop: StopReason = "tool_use", usage: Usage = USAGE) -> Reply:
    return Reply(text=text, calls=calls, stop=stop, usage=usage)


def raw(text: str, usage: Usage = USAGE) -> Reply:
    """A model that emits one text that should hold the call itself."""
    return Reply(raw=text, usage=usage)


class ScriptedReplies:
    """Plays replies and faults in order by the context's cursor; ``exhausted`` after the last.

    Stateless like every proposer: the position is the context's. ``contexts`` holds what it was shown.
    """

    def __init__(
        self, script: list[Reply | ProposerFault], route: str = "replies:1", limits: RouteLimits | None = None
    ) -> None:
        self.route = route
        self.limits = limits or RouteLimits()
        self._script = script
        self.contexts: list[Context] = []

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        from dataclasses import replace

        self.contexts.append(context)
        if context.cursor >= len(self._script):
            raise ProposerFault("exhausted", f"{self.route} has nothing left to say", cursor=context.cursor)
        found = self._script[context.cursor]
        after = context.cursor + 1
        if isinstance(found, ProposerFault):
            raise ProposerFault(
                found.kind, found.message, retry_after_ms=found.retry_after_ms, usage=found.usage, cursor=after
            )
        return replace(found, cursor=after)

    async def close(self) -> None:
        """Nothing to release."""

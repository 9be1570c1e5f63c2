"""``scripted:FILE``: proposals from a file, for tests, demos and offline runs.

Stateless: the position is ``Context.cursor``, and every reply and fault hands back the position after it. After a
restart the same context gets the same reply.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from setpoint.adapters.proposers.script_file import Entry, Failed, Said, Script, load_script
from setpoint.kernel.errors import ProposerFault
from setpoint.kernel.proposal import Reply
from setpoint.ports.proposer import Context, RouteLimits


class ScriptedProposer:
    """Plays the script at ``path``. UsageFault when the file is not a script."""

    def __init__(self, route: str, path: Path) -> None:
        self.route = route
        self._path = path
        self._script = load_script(path)
        self.limits = RouteLimits(output_tokens=_longest_reply(self._script))

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        cursor, entry = self._find(context)
        await self._sleep(entry.sleep_ms, deadline_ms, cursor)
        match entry.act:
            case Said(text=text, calls=calls, raw=raw, stop=stop, usage=usage):
                return Reply(text, calls, raw, stop, usage, self.route, cursor)
            case Failed(kind=kind, retry_after_ms=retry_after_ms, usage=usage):
                message = f"The script {self._path.name} plays {kind} at line {entry.line}."
                raise ProposerFault(kind, message, retry_after_ms=retry_after_ms, usage=usage, cursor=cursor)

    async def close(self) -> None:
        """Nothing to release."""

    def _find(self, context: Context) -> tuple[int, Entry]:
        """The entry to play, and the position after it: the first from the cursor on whose ``when`` holds."""
        entries = self._script.entries
        seen = [context.text, *context.notes]
        for position in range(context.cursor, len(entries)):
            if _holds(entries[position], seen):
                return position + 1, entries[position]
        if self._script.repeat_last:
            for entry in reversed(entries):
                if _holds(entry, seen):
                    return len(entries), entry
        raise ProposerFault(
            "exhausted",
            f"The script {self._path.name} has no proposal left after {len(entries)}.",
            cursor=max(context.cursor, len(entries)),
        )

    async def _sleep(self, sleep_ms: int, deadline_ms: int, cursor: int) -> None:
        await asyncio.sleep(max(0, min(sleep_ms, deadline_ms)) / 1000)
        if sleep_ms > deadline_ms:
            raise ProposerFault(
                "timeout",
                f"The script {self._path.name} takes {sleep_ms} ms for this reply; the call may take {deadline_ms} ms.",
                cursor=cursor,
            )


def _holds(entry: Entry, seen: list[str]) -> bool:
    return entry.note_contains is None or any(entry.note_contains in text for text in seen)


def _longest_reply(script: Script) -> int:
    """The worst case to reserve before a call: what the longest reply of the script is charged."""
    return max((entry.act.usage.output_tokens for entry in script.entries), default=0)

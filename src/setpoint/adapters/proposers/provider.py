"""What the routes to model providers share: one attempt under a deadline, one client per event loop, a bounded draft.

Client libraries are imported in a thread when a route is first used: that takes one to two seconds of CPU, and the
loop must stay responsive meanwhile. Their own retries are off: every attempt is seen by the loop and lies in the log.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar

from setpoint.adapters.proposers.failures import failure_of, told
from setpoint.adapters.proposers.provider_route import ProviderRoute
from setpoint.adapters.proposers.wire import plain_text
from setpoint.kernel.errors import Fault, ProposerFault, UsageFault
from setpoint.kernel.limits import PROPOSAL_BYTES_MAX
from setpoint.kernel.proposal import Reply, Usage
from setpoint.ports.proposer import Context


class ProviderProposer(ABC):
    """One model of one endpoint, through the provider's official client.

    UsageFault when the route or the installation is wrong. A subclass says how to speak: the request, the pieces of a
    stream, the reply they make.
    """

    sdk: ClassVar[str]  # the client library's module, and the name of the extra
    key_env: ClassVar[str]
    base_url_env: ClassVar[str]

    def __init__(self, route: str, rest: str) -> None:
        if importlib.util.find_spec(self.sdk) is None:
            raise UsageFault(
                f"The route {route!r} needs the client library {self.sdk!r}, which is not installed.",
                hint=f"pip install 'setpoint[{self.sdk}]'",
            )
        self.to = ProviderRoute.read(route, rest, key_env=self.key_env)
        self.route = route
        self.limits = self.to.limits
        self._clients: ClientPerLoop[Any] = ClientPerLoop(self._make_client, lambda client: client.close())

    async def propose(self, context: Context, deadline_ms: int) -> Reply:
        draft = self.draft()
        try:
            async with asyncio.timeout(max(0, deadline_ms) / 1000):
                client = await self._clients.get()
                stream = await self.send(client, self.request(context), deadline_ms / 1000)
                async with stream:
                    async for piece in stream:
                        draft.receive(piece)
        except TimeoutError as error:
            raise self.fault("timeout", f"gave no whole reply within {deadline_ms} ms", draft.usage) from error
        except Fault as fault:
            if isinstance(fault, ProposerFault) and fault.usage is None:
                fault.usage = draft.usage
            raise
        except Exception as error:  # whatever the library raises; what is not a failure of the provider goes on
            failure = failure_of(importlib.import_module(self.sdk), error)
            if failure is None:
                raise
            kind, pause = failure
            raise self.fault(kind, f"failed: {error}", draft.usage, pause) from error
        if not draft.is_whole:
            raise self.fault("broken_stream", "ended its stream before the reply was whole", draft.usage)
        return self.reply(draft)

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.close()

    def fault(self, kind: str, what: str, usage: Usage, pause_ms: int | None = None) -> ProposerFault:
        """A fault of this route in the provider's words, without the key."""
        words = told(what, os.environ.get(self.to.key_env, ""))
        return ProposerFault(kind, f"{self.sdk}:{self.to.model} {words}", retry_after_ms=pause_ms, usage=usage)

    @property
    def base_url(self) -> str | None:
        """Another endpoint than the provider's own, or None."""
        return self.to.base_url or os.environ.get(self.base_url_env) or None

    def _make_client(self) -> Any:
        key = self.to.key(self.base_url)
        return self.make_client(importlib.import_module(self.sdk), key)

    @abstractmethod
    def make_client(self, sdk: Any, key: str) -> Any: ...

    @abstractmethod
    def request(self, context: Context) -> dict[str, Any]: ...

    @abstractmethod
    async def send(self, client: Any, request: dict[str, Any], timeout_s: float) -> Any:
        """The stream of the answer."""

    @abstractmethod
    def draft(self) -> ReplyDraft: ...

    @abstractmethod
    def reply(self, draft: ReplyDraft) -> Reply:
        """The reply a whole draft makes; ProposerFault when the provider refused or ended in an unknown way."""


# One client per event loop

Client = TypeVar("Client")


class ClientPerLoop(Generic[Client]):
    """A client made in a thread on first use. Connections belong to an event loop, so another loop gets another one."""

    def __init__(self, make: Callable[[], Client], close: Callable[[Client], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: asyncio.Task[Client] | None = None

    async def get(self) -> Client:
        """The client of the running loop; whatever making it raised, for every caller that waited for it."""
        loop = asyncio.get_running_loop()
        if self._pending is None or self._loop is not loop or _failed(self._pending):
            # A client of a closed loop cannot be closed any more; its sockets go with it.
            self._loop, self._pending = loop, loop.create_task(asyncio.to_thread(self._make))
        # Shielded: one caller's deadline must not take the client from the others.
        return await asyncio.shield(self._pending)

    async def close(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None or self._loop is not asyncio.get_running_loop():
            return
        await asyncio.wait([pending])
        if not _failed(pending):
            await self._close(pending.result())


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


# What a stream has brought so far


class ReplyDraft(ABC):
    """Text and calls as they arrive. Bounded; nothing of it is a reply before the provider says so."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.model = ""
        self.stop: str | None = None
        self.is_whole = False  # the provider said that nothing more comes
        self._size = 0
        self._text: list[str] = []
        self._calls: dict[int, _CallDraft] = {}

    def receive(self, piece: Any) -> None:
        """Take one piece of the stream. ProposerFault(invalid) when it is too much, or not of the format."""
        try:
            self.take(piece)
        except (AttributeError, TypeError, LookupError, ValueError) as error:
            # The libraries do not validate what they decode, so an endpoint of another format shows here.
            message = told(f"The endpoint does not speak the format it should: {error}.")
            raise ProposerFault("invalid", message, usage=self.usage) from error

    @abstractmethod
    def take(self, piece: Any) -> None: ...

    def add_text(self, text: str | None) -> None:
        if text:
            self._grow(len(text))
            self._text.append(text)

    def add_call(self, index: int, *, name: str | None = None, arguments: str | None = None, call_id: str = "") -> None:
        """A piece of the call at ``index``; names and arguments come in pieces, too."""
        call = self._calls.get(index)
        if call is None:
            self._grow(64)  # an empty call weighs too: a stream of nothing but new calls must end
            call = self._calls[index] = _CallDraft()
        self._grow(len(name or "") + len(arguments or ""))
        call.call_id = call.call_id or call_id
        call.name.append(name or "")
        call.arguments.append(arguments or "")

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > PROPOSAL_BYTES_MAX:
            message = f"The provider sends more than the {PROPOSAL_BYTES_MAX} characters one reply may have."
            raise ProposerFault("invalid", message, usage=self.usage)

    @property
    def last_index(self) -> int:
        return max(self._calls, default=-1)

    @property
    def text(self) -> str:
        return plain_text("".join(self._text))

    def calls(self) -> list[tuple[str, str, str]]:
        """``(name, arguments, id)`` in the order of the provider's indices."""
        drafts = [self._calls[index] for index in sorted(self._calls)]
        return [("".join(draft.name), "".join(draft.arguments), draft.call_id) for draft in drafts]


class _CallDraft:
    def __init__(self) -> None:
        self.name: list[str] = []
        self.arguments: list[str] = []
        self.call_id = ""

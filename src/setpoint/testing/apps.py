"""An application on the bench: workflows in memory, on a clock that jumps, with approvers whose keys are at hand.

    kit = AppKit(app, services={"bank": FakeEffector()}, approvers={"anna": ["ops"]})
    outcome = await kit.run("refund", {"order_id": "A-1"})
    kit.approve(outcome.run_id, by="anna")
    outcome = await kit.go_on(outcome.run_id)

``restart`` is a new process over the same log. ``crash_everywhere`` is a death of the owner at every event of a story.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.adapters.approvers.signing import sign_with
from setpoint.adapters.stores import this_owner
from setpoint.adapters.stores.memory import MemoryLog
from setpoint.app.runs import KIND, RunOutcome, Runs
from setpoint.app.sessions import Sessions, TurnReply
from setpoint.kernel.events import Event
from setpoint.kernel.run_events import decode
from setpoint.kernel.ticket import Ticket, Verdict, decide, read_ticket, signed_bytes
from setpoint.kernel.units import parse_duration_ms
from setpoint.testing.clock import FakeClock
from setpoint.testing.crash import Crash, CrashingLog
from setpoint.testing.purity import pure

if TYPE_CHECKING:
    from setpoint.app.agent import Agent
    from setpoint.app.application import App
    from setpoint.ports.log import Log
    from setpoint.ports.proposer import Proposer


class AppKit:
    """One process's view of an application in a test. Steps are checked to be pure (ImpureStep).

    ``services`` is what capabilities find in ``ctx.services``; ``approvers`` maps a name to its roles, and the kit has
    their keys; ``judge`` answers judge nodes, ``model`` the agents. Both, like ``log`` and ``clock``, are attributes,
    beside ``runs`` and ``sessions`` (those of a runtime).
    """

    def __init__(
        self,
        app: App,
        *,
        services: Mapping[str, Any] | None = None,
        approvers: Mapping[str, Sequence[str]] | None = None,
        judge: Proposer | None = None,
        model: Proposer | None = None,
        log: Log | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        self.app = app
        self.services = dict(services or {})
        self.clock = clock or FakeClock()
        self.log: Log = log or MemoryLog(self.clock.now_ms)
        self.judge = judge
        self.model = model
        self.keys = {name: Ed25519PrivateKey.generate() for name in approvers or {}}
        self._approvers = [
            Approver(name, tuple(roles), _public_line(self.keys[name])) for name, roles in (approvers or {}).items()
        ]
        self.runs = self._open()
        self.sessions = self._open_sessions()

    def _open(self) -> Runs:
        return Runs(
            self.log,
            self.clock,
            this_owner(),
            self.app.check(),
            Roster([*self._approvers, *self.app.approvers], self.clock),
            self.services,
            judges=lambda: self.judge,
            around_step=pure,
        )

    def _open_sessions(self) -> Sessions:
        return Sessions(self.app, self.runs, _no_route, None if self.model is None else [self.model])

    def restart(self, log: Log | None = None) -> None:
        """A new process over the same log: nothing in memory is left. ``log``: through another wrapper of it."""
        if log is not None:
            self.log = log
        self.runs = self._open()
        self.sessions = self._open_sessions()

    # Running

    async def start(self, workflow: str, input: Any, **options: Any) -> str:
        """Record a run; nothing of it is done. Options: run_id, principal, tenant, scopes, session."""
        program = self.app.newest(workflow).program
        given, state = program.begin(input)
        return await self.runs.start(program, given, state, **options)

    async def run(self, workflow: str, input: Any, *, patience: str = "60s", **options: Any) -> RunOutcome:
        """Start a run and work on it until it ends or waits; timers within ``patience`` pass at once."""
        return await self.go_on(await self.start(workflow, input, **options), patience=patience)

    async def go_on(self, run_id: str, *, patience: str = "60s") -> RunOutcome:
        """Work on a run that is there, as ``run`` does."""
        return await self.runs.wait(run_id, patience_ms=parse_duration_ms(patience))

    async def skip(self, duration: str) -> None:
        """Let the time pass, and do whatever has become due."""
        self.clock.advance(parse_duration_ms(duration))
        await self.runs.work(until_idle=True)

    async def say(
        self,
        agent: Agent,
        text: str,
        *,
        session: str = "session",
        principal: str = "tester",
        tenant: str = "",
        scopes: Sequence[str] | None = None,
    ) -> TurnReply:
        """Give an agent a message in a session, opened when it is new; ``model`` answers in the agent's place."""
        opened = await self.sessions.open(session, principal=principal, tenant=tenant, scopes=scopes)
        return await self.sessions.turn(agent, opened, text)

    # Telling

    def signal(self, run_id: str, name: str, payload: Any = None, *, key: str = "") -> bool:
        """False when a signal of that key was delivered before."""
        return self.runs.tell(run_id, "signal", {"name": name, "payload": payload}, by="test", key=key)

    def approve(self, run_id: str, *, by: str, reason: str = "") -> None:
        """Sign a yes to everything the run waits for, with that person's key."""
        self._decide(run_id, "approve", by, reason)

    def deny(self, run_id: str, *, by: str, reason: str = "") -> None:
        self._decide(run_id, "deny", by, reason)

    def _decide(self, run_id: str, verdict: Verdict, by: str, reason: str) -> None:
        tickets = self.tickets(run_id)
        assert tickets, f"run {run_id} waits for no approval"
        for ticket in tickets:
            decision = decide(ticket, verdict, by, self.clock.now_ms(), reason)
            self.runs.tell(run_id, "decide", signed_bytes(sign_with(self.keys[by], decision)).decode(), by=by)

    def tickets(self, run_id: str) -> list[Ticket]:
        """What people are asked about a run."""
        open_ones = self.runs.record(run_id).open_tickets
        return [read_ticket(self.log.payload(ticket.ticket.ref)) for ticket in open_ones]

    # Looking

    def events(self, run_id: str) -> list[Event]:
        return [decode(stored.type, stored.data) for stored in self.log.read(run_id)]

    def trace(self, run_id: str) -> list[str]:
        """One line an event that means something to a reader: what a golden file holds. No ids, no times."""
        return [line for event in self.events(run_id) if (line := _line(event))]

    def run_ids(self) -> list[str]:
        """Every run, newest first."""
        return [info.stream for info in self.log.streams(KIND)]


Story = Callable[[AppKit], Awaitable[Any]]


async def crash_everywhere(
    make: Callable[[], AppKit],
    story: Story,
    check: Callable[[AppKit, int], None],
    *,
    points: Sequence[int] | None = None,
) -> int:
    """Play ``story`` once undisturbed, then once for each of its events: the owner dies right after it, a new process
    takes over, and the story is told to it again. ``check`` sees every end, and the event it died at (0: none).

    ``make`` gives a fresh kit with a fresh world. The story must be one that may be told twice: give its runs ids of
    their own. ``points`` picks some of the events. Returns how many there are.
    """
    whole = make()
    await story(whole)
    check(whole, 0)
    total = sum(whole.log.head(run_id).seq for run_id in whole.run_ids())
    for at in points or range(1, total + 1):
        kit = make()
        inner = kit.log
        kit.restart(CrashingLog(inner, at))  # type: ignore[arg-type]
        try:
            await story(kit)
        except Crash:
            kit.restart(inner)
            await story(kit)
            await kit.runs.work(until_idle=True)
        check(kit, at)
    return total


def _no_route(route: str) -> Proposer:
    raise AssertionError(f"a kit opens no route ({route}); give it model=..., or the agent a proposer")


def _public_line(key: Ed25519PrivateKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


_SHOWN = (
    "node",
    "capability",
    "key",
    "label",
    "kind",
    "status",
    "how",
    "verdict",
    "outcome",
    "signal",
    "state",
    "reason",
)


def _line(event: Event) -> str:
    name = type(event).__name__
    if name in ("LeaseClaimed", "CheckpointWritten"):
        return ""
    words = [f"{field}={value}" for field in _SHOWN if (value := getattr(event, field, ""))]
    return " ".join([name, *words])

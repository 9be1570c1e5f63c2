"""The place where the refund story is played: a bank with a ledger, a shop's orders, and people with keys."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from setpoint.adapters.approvers.signing import own_key, own_public_line, sign_decision
from setpoint.adapters.effectors.http import HttpClient
from setpoint.app.runs import RunOutcome
from setpoint.app.runtime import Runtime
from setpoint.app.sessions import TurnReply
from setpoint.cli.tour.ground import MATERIAL, program
from setpoint.cli.tour.narration import Untold
from setpoint.demo.refund import refunds
from setpoint.demo.refund.bank import ORDERS, Bank
from setpoint.kernel.events import Event
from setpoint.kernel.run_events import ApprovalRequested, decode
from setpoint.kernel.ticket import Ticket, read_ticket, signed_bytes

CUSTOMER: Final = "customer:17"
SOLD: Final[dict[str, dict[str, Any]]] = {
    **ORDERS,
    "A-1004": {"customer": CUSTOMER, "item": "blender", "cents": 6_900, "status": "delivered", "days": 2},
    "A-1005": {"customer": CUSTOMER, "item": "mirror", "cents": 7_500, "status": "delivered", "days": 9},
    "A-1006": {"customer": CUSTOMER, "item": "sofa", "cents": 52_000, "status": "delivered", "days": 14},
}
APPROVER: Final = "olga"
FILES: Final = ("refunds.py", "bank.py", "friendly.yaml", "obedient.yaml")


@dataclass(slots=True)
class Shop:
    """``root`` holds the program, the bank's ledger and the keys of people; the log is in Setpoint's own home."""

    root: Path
    bank: Bank

    @contextlib.asynccontextmanager
    async def runtime(self) -> AsyncIterator[Runtime]:
        """A runtime of this process for the application, as ``refunds.py`` opens it."""
        async with HttpClient(self.bank.url) as client, Runtime.open(None, refunds.app, services={"bank": client}) as r:
            yield r

    async def ask(self, order_id: str, customer: str = CUSTOMER, **more: Any) -> Run:
        """One run, from the request as far as it comes."""
        async with self.runtime() as runtime:
            asked = {"order_id": order_id, **more}
            return Run.of(runtime, await runtime.run(refunds.refund, asked, principal=customer))

    async def look(self, run_id: str) -> Run:
        """What the log says of a run now."""
        async with self.runtime() as runtime:
            return Run.of(runtime, RunOutcome(run_id, runtime.runs.record(run_id)))

    async def say(self, text: str, script: str, customer: str = CUSTOMER) -> TurnReply:
        """What the support agent makes of a customer's text, with the model of that script."""
        async with (
            HttpClient(self.bank.url) as client,
            Runtime.open(
                None, refunds.app, services={"bank": client}, models=[f"scripted:{self.root / script}"]
            ) as runtime,
        ):
            session = await runtime.session(customer, principal=customer)
            return await runtime.turn(refunds.support, session, text)

    def command(self, *words: str) -> list[str]:
        """The application as a program of its own."""
        return [sys.executable, "refunds.py", "--bank", self.bank.url, *words]

    async def program(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Run it to its end: its exit code, and what it printed."""
        code, text = await program(self.command(*words), cwd=self.root)
        try:
            return code, json.loads(text.strip().splitlines()[-1]) if text.strip() else {}
        except ValueError as fault:
            raise Untold(f"refunds.py {' '.join(words)} ended with {code} and said {text!r}") from fault

    # People

    def key_of(self, name: str) -> Path:
        """Their private Ed25519 key, in a file only this user can read; made when it is first asked for."""
        return own_key(self.root / "keys" / name)

    def name_approver(self, home: Path) -> None:
        """Write the installation's roster: one person, who is ops."""
        roster = home / "approvers.yaml"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = own_public_line(self.key_of(APPROVER))
        roster.write_text(f"approvers:\n  - {{name: {APPROVER}, roles: [ops], key: {line}}}\n", encoding="utf-8")
        roster.chmod(0o600)

    async def sign(self, run_id: str, ticket: Ticket, key_of: str = APPROVER) -> None:
        """Leave a yes to exactly this ticket, in the name of the approver, with somebody's key."""
        async with self.runtime() as runtime:
            now = runtime.clock.now_ms()
            signed = sign_decision(ticket, "approve", APPROVER, now, "", self.key_of(key_of))
            runtime.runs.tell(run_id, "decide", signed_bytes(signed).decode(), by=key_of)

    async def go_on(self, run_id: str) -> Run:
        async with self.runtime() as runtime:
            return Run.of(runtime, await runtime.runs.wait(run_id))

    # The bank's books

    def books(self) -> dict[str, str]:
        """What the bank has paid, by order."""
        found: dict[str, list[str]] = {}
        for row in self.bank.ledger()["refunds"]:
            found.setdefault(row["order_id"], []).append(money(row["cents"]) + (" taken back" * row["reversed"]))
        return {order_id: " and ".join(rows) for order_id, rows in found.items()}

    def requests_for(self, order_id: str) -> int:
        """How many refunds and reversals of an order the ledger holds."""
        made = [row for row in self.bank.ledger()["refunds"] if row["order_id"] == order_id]
        ids = {row["refund_id"] for row in made}
        return len(made) + sum(row["refund_id"] in ids for row in self.bank.ledger()["reversals"])

    def letters(self, order_id: str) -> int:
        return sum(row["key"] == f"letter:{order_id}" for row in self.bank.ledger()["letters"])


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the log has it."""

    outcome: RunOutcome
    events: tuple[Event, ...]
    ticket: Ticket | None
    """The one that people were asked last."""

    @classmethod
    def of(cls, runtime: Runtime, outcome: RunOutcome) -> Run:
        events = tuple(decode(stored.type, stored.data) for stored in runtime.log.read(outcome.run_id))
        asked = [event for event in events if isinstance(event, ApprovalRequested)]
        ticket = read_ticket(runtime.log.payload(asked[-1].ticket.ref)) if asked else None
        return cls(outcome, events, ticket)

    @property
    def run_id(self) -> str:
        return self.outcome.run_id

    @property
    def output(self) -> dict[str, Any]:
        return self.outcome.output or {}

    @property
    def asked(self) -> Ticket:
        if self.ticket is None:
            raise Untold(f"run {self.run_id} asked nobody")
        return self.ticket

    def of_type(self, kind: Any, node: str = "") -> list[Any]:
        """The events of a type, of the node of that name where one is given."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and (not node or getattr(event, "node", "").endswith(f"/{node}"))
        ]


@contextlib.contextmanager
def opened(root: Path, orders: Mapping[str, Mapping[str, Any]] = SOLD) -> Any:
    """The program laid out in ``root``, and the bank serving; it is stopped on leaving."""
    folder = root / "refund"
    folder.mkdir()
    for name in FILES:
        shutil.copyfile(MATERIAL / "refund" / name, folder / name)
    with Bank(folder / "bank.db", orders) as bank:
        yield Shop(folder, bank)


def money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"

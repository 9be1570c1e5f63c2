"""A person says yes to one exact payment, across a restart; another amount is another question."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from setpoint.cli.tour.narration import Narrator
from setpoint.cli.tour.refund_shop import APPROVER, Run, Shop
from setpoint.kernel.run_events import ApprovalResolved, ApprovalSigned, EffectQueued, LeaseClaimed
from setpoint.kernel.ticket import Ticket, describe

WAITS: Final = 13
"""The exit code of a run that waits for a person."""
SHOWN: Final = {
    "Action": "asks",
    "Arguments": "with",
    "Preview": "means",
    "Needs": "needs",
    "Expires": "expires",
    "Digest": "digest",
}
"""What is shown here of a ticket, and the word for it."""


async def play(narrator: Narrator, shop: Shop, home: Path) -> None:
    narrator.chapter("5. Above the limit: a person says yes")
    narrator.tell(
        f"For this story {APPROVER} is ops. The key is a real Ed25519 key, made just now; its public half is in the "
        "installation's roster, which no action can reach. What is signed is a digest over capability, arguments, "
        "state and rules."
    )
    shop.name_approver(home)
    await _across_a_restart(narrator, shop)
    await _another_amount(narrator, shop)


async def _across_a_restart(narrator: Narrator, shop: Shop) -> None:
    order_id = "A-1002"
    narrator.row("run", f"python refunds.py --bank ... {order_id}")
    code, said = await shop.program(order_id)
    narrator.fact("exit: it waits, and no process is left", code, WAITS)
    run_id = said["run"]
    waiting = await shop.look(run_id)
    _tell_ticket(narrator, waiting.asked)
    narrator.fact("refunds of the order meanwhile", shop.requests_for(order_id), 0)

    narrator.row("sign", f"somebody, in {APPROVER}'s name, with a key of their own")
    await shop.sign(run_id, waiting.asked, key_of="somebody")
    still = await shop.go_on(run_id)
    (refused,) = still.of_type(ApprovalSigned)
    narrator.row("refused", refused.why)
    narrator.fact("it counts", refused.counts, False, shown="no")
    narrator.fact("refunds of the order meanwhile", shop.requests_for(order_id), 0)

    narrator.row("sign", f"{APPROVER}, while no worker runs")
    await shop.sign(run_id, waiting.asked)
    narrator.row("run", "python refunds.py --bank ...    (another process)")
    code, _ = await shop.program()
    narrator.fact("exit", code, 0)
    run = await shop.look(run_id)
    narrator.fact("the run", run.outcome.record.state, "COMPLETED")
    narrator.fact("approved by", _granted_by(run), [APPROVER], shown=APPROVER)
    (intent,) = run.of_type(EffectQueued, "pay")
    narrator.fact("the payment used up that very ticket", intent.ticket_id == waiting.asked.ticket_id, True)
    narrator.fact("processes that owned the run", len(run.of_type(LeaseClaimed)), 3)
    narrator.fact("the ledger", shop.books().get(order_id), "319.00")


async def _another_amount(narrator: Narrator, shop: Shop) -> None:
    narrator.scene("the amount changes after the yes")
    order_id = "A-1006"
    waiting = await shop.ask(order_id)
    old = waiting.asked
    narrator.row("asks", old.preview)
    await shop.sign(waiting.run_id, old)
    shop.bank.orders[order_id]["cents"] = 46_800
    narrator.row("then", f"{APPROVER} says yes; the shop corrects the price of the sofa to 468.00")
    again = await shop.go_on(waiting.run_id)
    narrator.row("asks", again.asked.preview)
    outcomes = [event.outcome for event in again.of_type(ApprovalResolved)]
    narrator.fact("the yes", outcomes, ["granted", "void"], shown="void: what would be paid is not what was asked")
    narrator.fact("refunds of the order", shop.requests_for(order_id), 0)
    await shop.sign(waiting.run_id, old)
    replayed = await shop.go_on(waiting.run_id)
    narrator.fact("the old signature once more, exit", replayed.outcome.exit_code, WAITS, shown="13, still waiting")
    narrator.fact("refunds of the order", shop.requests_for(order_id), 0)
    await shop.sign(waiting.run_id, again.asked)
    done = await shop.go_on(waiting.run_id)
    narrator.fact("after a yes to the new amount", done.outcome.record.state, "COMPLETED")
    narrator.fact("the ledger", shop.books().get(order_id), "468.00")


def _tell_ticket(narrator: Narrator, ticket: Ticket) -> None:
    for label, text in describe(ticket):
        if label in SHOWN:
            narrator.row(SHOWN[label], " ".join(text.split()))


def _granted_by(run: Run) -> list[str]:
    return [name for event in run.of_type(ApprovalResolved) if event.outcome == "granted" for name in event.by]

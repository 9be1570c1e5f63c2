"""The story of ``setpoint demo refund``: money moves once, whoever asks, whatever breaks."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Final

from setpoint.cli.tour import refund_people
from setpoint.cli.tour.narration import Narrator, Untold
from setpoint.cli.tour.refund_shop import SOLD, Run, Shop, money, opened
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.run_events import (
    BlockEntered,
    Compensated,
    EffectDelivered,
    EffectQueued,
    EffectSettled,
    Finished,
    LeaseClaimed,
)

LATE: Final = "A-0900"
DEADLINE_S: Final = 30
"""For a program to come to the bank, on a machine that does other things as well."""


def order_of(word: str) -> str:
    """The order that ``--order`` names: an id, or ``late`` for one that is past the time. UsageFault."""
    order_id = LATE if word == "late" else word
    if order_id not in SOLD:
        raise UsageFault(f"the shop has no order {word!r}", hint=f"It has late, {', '.join(SOLD)}.")
    return order_id


async def play(narrator: Narrator, root: Path, order: str | None) -> None:
    """The whole story, or only the refund of one order. Untold when a scene did not come to what it was to tell."""
    with opened(root) as shop:
        if order is not None:
            await _one(narrator, shop, order_of(order))
            return
        _introduce(narrator, shop)
        await _right(narrator, shop)
        await _late(narrator, shop)
        await _obedient_model(narrator, shop)
        await _lost_reply(narrator, shop)
        await _killed(narrator, shop)
        await refund_people.play(narrator, shop, root / "home")
        await _taken_back(narrator, shop)
        _books(narrator, shop)


def _introduce(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("A refund desk")
    narrator.tell(
        "A customer writes, a model reads it, and money moves. Here the model may only ask for a refund; what happens "
        "then is a workflow: look the order up, decide by rules, ask a person above 100.00, pay, tell the customer. "
        "The bank is a real HTTP server on this machine, with a ledger of its own and troubles on request. After every "
        "scene its ledger is read: that is what counts."
    )
    narrator.row("bank", shop.bank.url)
    narrator.row("program", str(shop.root / "refunds.py"))
    narrator.fact("the ledger at the start", shop.books(), {}, shown="empty")


# One order


async def _one(narrator: Narrator, shop: Shop, order_id: str) -> None:
    order = SOLD[order_id]
    narrator.chapter(f"Refund {order_id}: {order['item']}, {money(order['cents'])}, {order['status']}")
    run = await shop.ask(order_id, order["customer"])
    record = run.outcome.record
    decision = _decision(run)
    narrator.row("decision", decision)
    if decision == "REJECTED":
        narrator.row("because", run.output["why_not"])
        narrator.fact("the bank was asked to do something", shop.bank.requests, 0, shown="never")
        narrator.fact("the ledger", shop.books(), {}, shown="empty")
    elif run.ticket is not None:
        narrator.row("asks", f"{run.ticket.preview}: {', '.join(run.ticket.by)} must say yes")
        narrator.fact("the ledger, before anybody said yes", shop.books(), {}, shown="empty")
    elif record.state == "FAILED":
        narrator.row("failed", record.message)
        entry = f"{money(order['cents'])} taken back"
        narrator.fact("the ledger", shop.books(), {order_id: entry}, shown=f"{order_id}, {entry}")
    else:
        entry = money(order["cents"])
        narrator.fact("the ledger", shop.books(), {order_id: entry}, shown=f"{order_id}, {entry}")
        narrator.fact("refunds of this order", shop.requests_for(order_id), 1)


def _decision(run: Run) -> str:
    """The label of the branch that was taken."""
    labels = [event.label for event in run.of_type(BlockEntered, "decision")]
    if len(labels) != 1:
        raise Untold(f"the run {run.run_id} came to no decision")
    return labels[0]


# The scenes


async def _right(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("1. A refund goes right")
    order_id = "A-1001"
    run = await shop.ask(order_id, reason="The kettle leaks.")
    for event in run.events:
        match event:
            case EffectQueued(node=node, key=key):
                narrator.row("intent", f"{node}: {key}, on disk before anything is sent")
            case EffectDelivered(node=node, how=how):
                narrator.row("done", f"{node}, known by {how}")
            case BlockEntered(label=label) if label:
                narrator.row("decision", label)
            case Finished(state=state):
                narrator.row("end", state)
            case _:
                pass
    narrator.fact("the run, exit", run.outcome.exit_code, 0)
    narrator.fact("the ledger", shop.books(), {order_id: "42.00"}, shown="one refund, 42.00 for A-1001")
    narrator.fact("letters to the customer", shop.letters(order_id), 1)
    again = await shop.ask(order_id, reason="Please refund my kettle order. URGENT!!")
    narrator.row("again", f"in other words: {_decision(again)}, {again.output['why_not']}")
    narrator.fact("refunds of the order now", shop.requests_for(order_id), 1)


async def _late(narrator: Narrator, shop: Shop) -> None:
    narrator.scene("an order that was delivered too long ago")
    before = shop.bank.requests
    run = await shop.ask(LATE)
    narrator.row("decision", f"{_decision(run)}: {run.output['why_not']}")
    narrator.fact("the decision", _decision(run), "REJECTED")
    narrator.fact("requests to the bank that would do something", shop.bank.requests - before, 0)


async def _obedient_model(narrator: Narrator, shop: Shop) -> None:
    from setpoint.cli.tour import refund_model

    await refund_model.play(narrator, shop)


async def _lost_reply(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("3. The reply is lost")
    narrator.tell(
        "The bank moves the money and the connection closes without an answer. Sending again would be a guess, so "
        "the runtime looks first: the bank keeps our key with the refund."
    )
    order_id = "A-1004"
    shop.bank.trouble("commit-then-timeout")
    run = await shop.ask(order_id)
    _tell_settled(narrator, run)
    narrator.fact("the run, exit", run.outcome.exit_code, 0)
    narrator.fact("times the refund was sent", len(run.of_type(EffectQueued, "pay")), 1)
    narrator.fact("how it is known", [event.how for event in run.of_type(EffectDelivered, "pay")], ["reconstructed"],
                  shown="reconstructed, from what the bank says when it is asked")  # fmt: skip
    narrator.fact("refunds of the order", shop.requests_for(order_id), 1)


def _tell_settled(narrator: Narrator, run: Run) -> None:
    for event in run.of_type((EffectQueued, EffectSettled, EffectDelivered), "pay"):
        match event:
            case EffectQueued(key=key):
                narrator.row("intent", key)
            case EffectSettled(verdict=verdict, by=by):
                narrator.row("settled", f"{verdict}, says the {by}")
            case EffectDelivered(status=status, how=how):
                narrator.row("result", f"{status}, {how}")
            case _:
                pass


async def _killed(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("4. kill -9 between the bank's commit and the record")
    narrator.tell(
        "The worst moment there is. The application runs as a program of its own; the bank pays and holds its answer "
        "back; the program is killed with SIGKILL. The money has moved, and no log of ours says so."
    )
    order_id = "A-1005"
    narrator.row("run", f"python refunds.py --bank ... {order_id}")
    await _kill_after_the_commit(shop, order_id)
    async with shop.runtime() as runtime:
        run_id = runtime.log.streams("run")[0].stream
    killed = await shop.look(run_id)
    narrator.row("killed", f"run {run_id}, after event {len(killed.events)}: {type(killed.events[-1]).__name__}")
    narrator.fact("in the log: the intent, and no result",
                  (len(killed.of_type(EffectQueued, "pay")), len(killed.of_type(EffectDelivered, "pay"))),
                  (1, 0), shown="yes")  # fmt: skip
    narrator.fact("the ledger has it", shop.books().get(order_id), "75.00")

    narrator.row("run", "python refunds.py --bank ...    (another process goes on with what is open)")
    code, _ = await shop.program()
    narrator.fact("exit", code, 0)
    run = await shop.look(run_id)
    _tell_settled(narrator, run)
    narrator.fact("the run", run.outcome.record.state, "COMPLETED")
    narrator.fact("processes that owned it, one after the other", len(run.of_type(LeaseClaimed)), 2)
    narrator.fact("the log up to the kill is unchanged", run.events[: len(killed.events)] == killed.events, True)
    narrator.fact("times the refund was sent", len(run.of_type(EffectQueued, "pay")), 1)
    narrator.fact("refunds of the order, letters about it", (shop.requests_for(order_id), shop.letters(order_id)),
                  (1, 1), shown="1, 1")  # fmt: skip


async def _kill_after_the_commit(shop: Shop, order_id: str) -> None:
    pause = shop.root / "held"
    shop.bank.change({"pause_after_commit": str(pause)})
    child = await asyncio.create_subprocess_exec(
        *shop.command(order_id),
        cwd=shop.root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not pause.exists():
                if child.returncode is not None:
                    raise Untold(f"the program ended with {child.returncode} before it came to the bank")
                await asyncio.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        await child.wait()
    except TimeoutError as late:
        raise Untold(f"the program did not come to the bank within {DEADLINE_S} s") from late
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        pause.unlink(missing_ok=True)


async def _taken_back(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("6. A failure after the refund")
    narrator.tell(
        "The refund is paid, and then the letter to the customer comes back for good. A run that cannot reach its end "
        "takes back what it did, last first, by the way back that the author of each capability registered."
    )
    order_id = "A-1003"
    run = await shop.ask(order_id, SOLD[order_id]["customer"])
    narrator.row("failed", run.outcome.record.message)
    for event in run.of_type(Compensated):
        narrator.row("back", f"{event.capability}, under the key {event.key}")
    narrator.fact("the run", run.outcome.record.state, "FAILED")
    narrator.fact("the ledger", shop.books().get(order_id), "87.00 taken back")
    narrator.fact("reversals of it", shop.requests_for(order_id) - 1, 1)


def _books(narrator: Narrator, shop: Shop) -> None:
    narrator.chapter("The books")
    books = shop.books()
    for order_id, entry in sorted(books.items()):
        narrator.row(order_id, entry)
    expected = {
        "A-1001": "42.00",
        "A-1002": "319.00",
        "A-1003": "87.00 taken back",
        "A-1004": "69.00",
        "A-1005": "75.00",
        "A-1006": "468.00",
    }
    narrator.fact("the bank's ledger, order by order, as it should be", books == expected, True)

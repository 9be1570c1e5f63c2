"""Walk a definition from where the record stands: the one place that decides which node is next.

Only what the definition says can happen: a node is reached by an index of its block, a block by the label of its node.
A node that is done is never entered again, since the cursor of its block lies behind it (R034, R054).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, assert_never

from setpoint.engine.runs.approving import approve
from setpoint.engine.runs.calls import call
from setpoint.engine.runs.hand import Asked, Fails, Hand, Parked, Pauses, run_code
from setpoint.engine.runs.judging import judge
from setpoint.engine.runs.messages import take_messages
from setpoint.engine.runs.program import (
    BranchCode,
    ChildCode,
    MapCode,
    ParallelCode,
    RepeatCode,
    StepCode,
    Values,
    WaitCode,
    is_same,
)
from setpoint.engine.runs.unwind import child_ended
from setpoint.kernel.effects import said
from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    Block,
    Branch,
    Call,
    Child,
    Judge,
    Map,
    Parallel,
    Repeat,
    Sleep,
    Step,
    Use,
    WaitFor,
    join,
)
from setpoint.kernel.keys import digest
from setpoint.kernel.run_events import BlockEntered, ChildStarted, NodeCompleted, NodeFailed, SignalAwaited, TimerSet
from setpoint.kernel.run_record import Wait


async def walk(hand: Hand, block: Block, path: str, static: str) -> None:
    """Do the nodes of a block that are left, in order. Raises Parked, Fails, Pauses or Asked where it cannot go on."""
    while (at := hand.record.blocks[path]) < len(block):
        await boundary(hand)
        node = block[at]
        await _do(hand, node, join(path, node.name), join(static, node.name), path)


async def boundary(hand: Hand) -> None:
    """Between two nodes: what people and the outside said is recorded, and stands from here on."""
    take_messages(hand)
    if hand.record.controls or hand.record.state != "RUNNING":
        raise Asked


async def _do(hand: Hand, node: AnyNode, path: str, static: str, block: str) -> None:
    match node:
        case Step():
            await complete(hand, path, block, _apply(hand, path, static))
        case Call():
            await call(hand, node, path, static, block)
        case Branch():
            await _branch(hand, node, path, static, block)
        case Use():
            _enter(hand, path, [path])
            await walk(hand, node.body, path, static)
            _leave(hand, path, block)
        case Parallel():
            await _parallel(hand, node, path, static, block)
        case Map():
            await _map(hand, node, path, static, block)
        case Repeat():
            await _repeat(hand, node, path, static, block)
        case WaitFor():
            await _wait_for(hand, node, path, static, block)
        case Sleep():
            await _sleep(hand, node, path, block)
        case Approval():
            values = await approve(hand, node, path, static)
            await complete(hand, path, block, values)
        case Child():
            await _child(hand, node, path, static, block)
        case Judge():
            values = await judge(hand, node, path, static)
            await complete(hand, path, block, values)
        case _:
            assert_never(node)


async def complete(hand: Hand, path: str, block: str, values: Values) -> None:
    """Record that a node is done; durable when it returns."""
    kept, refs = hand.journal.spill(values)
    await hand.journal.write(NodeCompleted(node=path, block=block, values=kept, refs=refs))


def _leave(hand: Hand, path: str, block: str, values: Values | None = None) -> None:
    """A node that only holds blocks is done; it becomes durable with whatever comes next."""
    kept, refs = hand.journal.spill(values or {})
    hand.journal.add(NodeCompleted(node=path, block=block, values=kept, refs=refs))


def _enter(hand: Hand, path: str, blocks: list[str], label: str = "", *, scopes: bool = False) -> None:
    if not any(inner in hand.record.blocks for inner in blocks):
        hand.journal.add(BlockEntered(node=path, blocks=blocks, label=label, scopes=scopes))


def _apply(hand: Hand, path: str, static: str) -> Values:
    code = hand.program.code[static]
    assert isinstance(code, StepCode)
    return run_code(hand, path, "the step", code.apply, hand.state_at(path), hand.input)


async def _branch(hand: Hand, node: Branch, path: str, static: str, block: str) -> None:
    label = hand.record.labels.get(path)
    if label is None:
        code = hand.program.code[static]
        assert isinstance(code, BranchCode)
        found = run_code(hand, path, "the selector", code.select, hand.state_at(path), hand.input)
        if not isinstance(found, str) or found not in node.cases:
            known = ", ".join(node.cases)
            message = (
                f"the selector of {path} returned {found!r}, which is none of its labels ({known}); no case was entered"
            )
            hand.journal.add(NodeFailed(node=path, kind="refused", message=message))
            raise Fails("UnknownLabel", message)
        label = found
        _enter(hand, path, [join(path, label)], label)
    await walk(hand, node.cases[label], join(path, label), join(static, label))
    _leave(hand, path, block)


async def _parallel(hand: Hand, node: Parallel, path: str, static: str, block: str) -> None:
    inner = {name: join(path, name) for name in node.branches}
    _enter(hand, path, list(inner.values()), scopes=True)
    await together([walk(hand, node.branches[name], inner[name], join(static, name)) for name in inner])
    code = hand.program.code[static]
    assert isinstance(code, ParallelCode)
    changes = _joined(hand, path, list(inner.values()))
    _leave(hand, path, block, run_code(hand, path, "the joined state", code.absorb, hand.state_at(path), changes))


def _joined(hand: Hand, path: str, scopes: Sequence[str]) -> Values:
    """What the blocks changed, together. Two that say different things of one field fail the run: neither is right."""
    before = hand.state_at(path)
    found: Values = {}
    writer: dict[str, str] = {}
    for scope in scopes:
        for name, value in hand.journal.values_at(scope).items():
            if name in before and is_same(before[name], value):
                continue
            if name in found and not is_same(found[name], value):
                message = f"{writer[name]} and {scope} wrote different values to the field {name!r} of the state"
                raise Fails("ParallelConflict", message)
            found[name], writer[name] = value, scope
    return found


async def _map(hand: Hand, node: Map, path: str, static: str, block: str) -> None:
    items = _items(hand, node, path, static)
    inner = [join(path, str(number)) for number in range(len(items))]
    left = iter(range(len(items)))
    stopped = False

    async def lane() -> None:
        """One round after the other. One that waits keeps its place: at most ``at_once`` are ever under way."""
        nonlocal stopped
        for number in left:
            if stopped:  # another lane met its end: those under way are finished, and no new ones begun
                return
            if inner[number] not in hand.record.blocks:
                kept, refs = hand.journal.spill({node.item: items[number]})
                hand.journal.add(BlockEntered(node=path, blocks=[inner[number]], scopes=True, values=kept, refs=refs))
            try:
                await walk(hand, node.body, inner[number], join(static, "*"))
            except (Asked, Fails, Pauses):
                stopped = True
                raise

    await together([lane() for _ in range(min(node.at_once, len(items)))])
    code = hand.program.code[static]
    assert isinstance(code, MapCode)
    gathered = [hand.journal.values_at(scope).get(node.collect) for scope in inner]
    _leave(hand, path, block, run_code(hand, path, "the list", code.gather, hand.state_at(path), gathered))


def _items(hand: Hand, node: Map, path: str, static: str) -> list[Any]:
    if (kept := hand.record.lists.get(path)) is not None:
        return hand.journal.load(kept)
    code = hand.program.code[static]
    assert isinstance(code, MapCode)
    items = run_code(hand, path, "the list", code.items, hand.state_at(path), hand.input)
    if not isinstance(items, list) or len(items) > node.at_most:  # type: ignore[reportUnknownArgumentType]
        found = f"{len(items)} items" if isinstance(items, list) else f"{items!r}"  # type: ignore[reportUnknownArgumentType]
        message = f"{path} takes a list of at most {node.at_most} items and got {found}; none was begun"
        raise Fails("TooMany" if isinstance(items, list) else "NotAList", message)
    hand.journal.add(BlockEntered(node=path, blocks=[], scopes=True, items=hand.journal.store(items)))
    return items  # type: ignore[reportUnknownVariableType]


async def _repeat(hand: Hand, node: Repeat, path: str, static: str, block: str) -> None:
    code = hand.program.code[static]
    assert isinstance(code, RepeatCode)
    if path not in hand.record.labels:
        _enter(hand, path, [join(path, "0")], "0")
    while True:
        round = hand.record.labels[path]
        await walk(hand, node.body, join(path, round), join(static, "*"))
        if run_code(hand, path, "the condition", code.until, hand.state_at(path), hand.input):
            break
        if int(round) + 1 >= node.at_most:
            message = f"{path} ran {node.at_most} times, its bound, and its condition still does not hold"
            raise Fails("RepeatExhausted", message)
        after = str(int(round) + 1)
        hand.journal.add(BlockEntered(node=path, blocks=[join(path, after)], label=after))
    _leave(hand, path, block)


async def together(walks: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of them, each as far as it comes. What stopped them is raised when all are at rest: the gravest first."""
    stops = [stop for stop in await asyncio.gather(*walks, return_exceptions=True) if stop is not None]
    for stop in stops:
        if not isinstance(stop, _STOPS):
            raise stop
    for kind in _STOPS:
        for stop in stops:
            if isinstance(stop, kind):
                raise stop


_STOPS = (Fails, Asked, Pauses, Parked)
"""A failure goes before what a person asked for: it is not recorded yet, and would be forgotten."""


# Waiting


async def _sleep(hand: Hand, node: Sleep, path: str, block: str) -> None:
    wait = hand.record.waits.get(path)
    now = hand.clock.now_ms()
    if wait is None:
        hand.journal.add(TimerSet(node=path, at_ms=now + node.ms, why="sleep"))
        raise Parked
    if now < wait.at_ms:
        raise Parked
    await complete(hand, path, block, {})


async def _wait_for(hand: Hand, node: WaitFor, path: str, static: str, block: str) -> None:
    wait = hand.record.waits.get(path)
    now = hand.clock.now_ms()
    if wait is None:
        hand.journal.add(SignalAwaited(node=path, signal=node.signal, until_ms=now + node.timeout_ms))
    code = hand.program.code[static]
    assert isinstance(code, WaitCode)
    while (payload := _payload(hand, hand.record.waits[path])) is not None:
        try:
            values = hand.around_step(partial(code.absorb, hand.state_at(path), payload[0]))
        except Exception as error:  # noqa: BLE001  # the sender's fault, not the workflow's: the wait goes on
            message = said(f"a signal {node.signal!r} came with a payload that does not fit: {error}")
            hand.journal.add(NodeFailed(node=path, kind="refused", message=message))
            continue
        # Folded at once: a node beside this one that waits for the same signal must not take the same message.
        _leave(hand, path, block, values)
        return await hand.journal.flush()
    if now < hand.record.waits[path].at_ms:
        raise Parked
    if node.on_timeout == "fail":
        message = f"{path} waited for the signal {node.signal!r} until its time was up"
        raise Fails("SignalTimeout", message)
    return await complete(hand, path, block, {})


def _payload(hand: Hand, wait: Wait) -> tuple[Any] | None:
    """What the first unread signal that ends the wait carries, None when there is none."""
    for received in hand.record.signals:
        if received.is_for(wait):
            return (None if received.payload is None else hand.journal.load(received.payload),)
    return None


async def _child(hand: Hand, node: Child, path: str, static: str, block: str) -> None:
    code = hand.program.code[static]
    assert isinstance(code, ChildCode)
    # The same one every time, so that a crash between its start and what is recorded of it starts no other.
    child_id = hand.record.children.get(path) or "rn-" + digest([hand.run_id, path])[7:23]
    ended = hand.child_outcome(child_id)
    if ended is None:
        values = run_code(hand, path, "the input", code.input, hand.state_at(path), hand.input)
        begun = run_code(hand, path, "the first state", code.program.begin, values)
        if path not in hand.record.children:
            await hand.journal.write(ChildStarted(node=path, run_id=child_id))
        await hand.start_child(hand, child_id, code.program, begun, path)
        raise Parked
    record, output = ended
    hand.journal.add(child_ended(path, record))
    if record.state != "COMPLETED":
        message = f"the run {child_id} of {node.workflow} ended {record.state} ({record.reason}): {record.message}"
        raise Fails("ChildFailed", message, record.finished_code)
    values = run_code(hand, path, "the result", code.absorb, hand.state_at(path), output)
    return await complete(hand, path, block, values)

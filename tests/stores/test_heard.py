"""Whoever goes to sleep overlooks no message: its wake-up time names the last one that it was decided on."""

from __future__ import annotations

from setpoint.ports.log import NO_WAKE, WAKE_BY_MESSAGE, Beside

from .words import EMPTY, Run, begin, drafts, runner


def test_a_wake_up_time_gives_way_to_a_message_that_it_does_not_know(url, clock):
    async def body(log):
        lease, head = begin(log), EMPTY
        log.deliver("t-1", "k-1", b"{}")
        for heard, then in ((0, 0), (1, WAKE_BY_MESSAGE), (-1, WAKE_BY_MESSAGE), (0, 0), (7, WAKE_BY_MESSAGE)):
            beside = Beside(wake_ms=WAKE_BY_MESSAGE, heard=heard)
            head = await log.append(lease, head, drafts("a"), beside=beside)
            assert log.next_wake("trajectory") == then, heard
        log.deliver("t-1", "k-2", b"{}")
        assert log.next_wake("trajectory") == 0
        head = await log.append(lease, head, drafts("a"), beside=Beside(wake_ms=NO_WAKE, heard=0))
        assert log.next_wake("trajectory") is None

    run: Run = runner(url, clock)
    run(body)


def test_the_messages_of_one_stream_wake_no_other(url, clock):
    async def body(log):
        leases = {name: begin(log, name) for name in ("t-1", "t-2")}
        log.deliver("t-2", "k", b"{}")
        for lease in leases.values():
            await log.append(lease, EMPTY, drafts("a"), beside=Beside(wake_ms=5, heard=0))
        assert log.due("trajectory", 10, 5) == [("t-2", 0), ("t-1", 5)]

    runner(url, clock)(body)

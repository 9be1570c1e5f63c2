"""Strips comments with the candidate. Runs in the candidate's sandbox and judges nothing."""

import signal

import sqlparse

CPU_SECONDS = 0.3  # of one statement; the fault would need centuries, and a check that hangs is no evidence at all


def stop(number, frame):
    raise TimeoutError(f"still searching after {CPU_SECONDS} s of processor time")


def strip(sql):
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        return sqlparse.format(sql, strip_comments=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

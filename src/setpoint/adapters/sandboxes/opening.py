"""Choose the strongest sandbox this machine gives, or say exactly why it is not enough."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from setpoint.adapters.sandboxes.bubblewrap import BubblewrapSandbox
from setpoint.adapters.sandboxes.probe import RUNGS, Found, Rung, machine, probe, weaker_report
from setpoint.adapters.sandboxes.process import ProcessSandbox
from setpoint.kernel.errors import IsolationUnavailable
from setpoint.ports.sandbox import TIERS, Sandbox, Tier


def open_sandbox(minimum: Tier, *, cache_dir: Path | None, rung: Rung | None = None) -> Sandbox:
    """The best sandbox at or above ``minimum``; the caller closes it.

    ``cache_dir`` is private to this user; it keeps the probe's answer and an empty mount point. None keeps the mount
    point in a temporary directory that ``close`` removes. ``rung`` forces one, for tests and `setpoint doctor`.

    IsolationUnavailable: the tier cannot be reached here; the message names what to change.
    """
    if minimum == "container":
        raise IsolationUnavailable(
            "isolation tier 'container' is not available: no container adapter is installed",
            hint="ask for tier 'namespaces', the strongest this release offers",
        )
    found = probe(cache_dir)
    wanted: Rung = rung or found.rung
    if RUNGS.index(wanted) < RUNGS.index(found.rung):
        raise IsolationUnavailable(
            f"rung {wanted!r} does not work here: {'; '.join(found.failures)}", hint=_hint(found)
        )
    tier: Tier = "namespaces" if wanted in ("overlay", "copy") else "none"
    if TIERS.index(tier) < TIERS.index(minimum):
        raise IsolationUnavailable(
            f"this machine cannot isolate at tier {minimum!r}; the best that works is rung {wanted!r} (tier {tier!r})",
            hint=_hint(found),
        )
    base = tempfile.mkdtemp(prefix="setpoint-") if cache_dir is None else os.fspath(cache_dir)
    os.makedirs(os.path.join(base, "scratch"), mode=0o700, exist_ok=True)
    report = found.report() if wanted == found.rung else weaker_report(found, wanted, base)
    sandbox: BubblewrapSandbox | ProcessSandbox
    if tier == "namespaces":
        sandbox = BubblewrapSandbox(machine(found, os.path.join(base, "scratch"), base), report)
    else:
        sandbox = ProcessSandbox(report, base)
    if cache_dir is None:
        sandbox.remove_when_closed(base)
    return sandbox


def _hint(found: Found) -> str:
    return "\n  ".join(found.hints) or "run `setpoint doctor` for what was tried"

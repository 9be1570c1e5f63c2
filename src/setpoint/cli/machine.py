"""``doctor``: what this machine can isolate, who is kept from whom and how, and what is missing.

Nothing is assumed: the sandbox is probed by running it, and every line is read from this installation.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from setpoint.adapters.sandboxes.probe import Found, probe
from setpoint.adapters.stores import open_log
from setpoint.app.keys import PRIVATE_NAME
from setpoint.app.places import Places, find_places
from setpoint.cli.terminal import printable, say, say_json, styled
from setpoint.kernel.errors import Fault
from setpoint.version import VERSION

EXIT_NO_ISOLATION: Final = 12
LIMITS: Final = ("wall", "cpu", "memory", "pids", "output", "disk")
EXTRAS: Final = {
    "openai": "models behind an OpenAI-compatible endpoint",
    "anthropic": "Anthropic's models",
    "pytest": "criteria that run pytest on Setpoint's own interpreter",
}


def doctor(arguments: Namespace) -> int:
    """Exit 0 when tasks of tier namespaces can run here, else 12."""
    places = find_places(arguments.store)
    places.make()
    found = probe(places.cache, fresh=arguments.fresh)
    told = _document(places, found)
    if arguments.json:
        say_json(told)
    else:
        for line in _said(told):
            say(line if "\x1b" in line else printable(line))
    return 0 if told["isolation"]["tier"] == "namespaces" else EXIT_NO_ISOLATION


def _document(places: Places, found: Found) -> dict[str, Any]:
    report = found.report()
    return {
        "setpoint": VERSION,
        "python": {"version": platform.python_version(), "path": sys.executable},
        "machine": {
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "uid": os.geteuid(),
            "cpus": os.cpu_count(),
        },
        "isolation": {
            "tier": report.tier,
            "rung": report.rung,
            "detail": report.detail,
            "bwrap": {"path": found.bwrap, "version": found.bwrap_version} if found.bwrap else None,
            "overlay": found.overlay,
            "private_tmpfs": found.private_tmpfs,
            "seccomp": found.seccomp,
            "landlock_abi": found.landlock_abi,
            "cgroup": found.cgroup or None,
            "limits": {name: name not in found.unenforced for name in LIMITS},
            "hints": list(found.hints),
            "failures": list(found.failures),
        },
        "trust_domains": _domains(places, found),
        "store": _store(places),
        "state": {"home": str(places.home), "mode": f"{os.stat(places.home).st_mode & 0o777:04o}"},
        "extras": [_extra(name, use) for name, use in EXTRAS.items()],
        "not_in_this_release": ["PostgreSQL store", "container sandbox", "signed approvals", "outside effects"],
        "skipped_tests": list(_skips(found)),
    }


def _domains(places: Places, found: Found) -> list[dict[str, str]]:
    """Who is kept from whom, and by what, on this machine."""
    contained = found.rung in ("overlay", "copy")
    inside = (
        "fresh user, pid, mount, network, IPC and cgroup namespaces per action; uid 1000 inside, no capabilities, "
        "a system-call filter; sees its working copy, /usr and its mounts"
        if contained
        else f"rung {found.rung}: not separated well enough; tasks that demand namespaces are refused"
    )
    return [
        {
            "domain": "model proposer",
            "holds": "nothing: text in, a proposal out",
            "kept_by": "no handle to workspace, store or keys; but the program of a `command:` route runs as this "
            "user, in no sandbox, with the whole environment of this process: it is trusted like any program you start",
        },
        {
            "domain": "supervisor",
            "holds": f"the log {places.store_url} and the signing key {places.keys / PRIVATE_NAME}",
            "kept_by": f"this process (pid {os.getpid()}, uid {os.geteuid()}); its state directory {places.home} "
            "(mode 0700) lies outside every workspace and is in no sandbox",
        },
        {"domain": "sandbox", "holds": "a staged copy of the workspace", "kept_by": inside},
        {
            "domain": "verifier",
            "holds": "sealed files, read-only, at $SEALED",
            "kept_by": "a second sandbox on the clean base plus the delta; sealed files are in no action's view, and "
            "their digest is pinned when the task is accepted"
            if contained
            else "not separated on this rung",
        },
    ]


def _store(places: Places) -> dict[str, Any]:
    """Whether the log can be opened, and what survives: ``power``, ``process`` or ``none``."""
    try:
        log = open_log(places.store_url, lambda: 0)
    except Fault as fault:
        return {"url": places.store_url, "usable": False, "durability": None, "problem": fault.message}
    durability, count = log.durability, len(log.streams())
    import asyncio

    asyncio.run(log.close())
    return {"url": places.store_url, "usable": True, "durability": durability, "trajectories": count}


def _extra(name: str, use: str) -> dict[str, Any]:
    installed = importlib.util.find_spec(name) is not None
    return {
        "name": name,
        "installed": installed,
        "for": use,
        "get": None if installed else f"pip install 'setpoint[{name}]'",
    }


def _skips(found: Found) -> Iterator[str]:
    """Why tests would skip here, in the words they use."""
    if found.rung not in ("overlay", "copy"):
        yield "no sandbox on this machine: tests of actions, checks and whole tasks"
    elif not found.overlay:
        yield "bwrap cannot mount overlays here: tests of the overlay rung"
    if not found.cgroup:
        yield "no writable cgroup here: tests of cgroup accounting"
    if shutil.which("strace") is None:
        yield "strace is not installed: the test that counts syncs from outside"
    if shutil.which("setpriv") is None:
        yield "setpriv is not installed: attacks as another user"
    if os.geteuid() != 0:
        yield "not root: tests that need to run as root"


def _said(told: dict[str, Any]) -> Iterator[str]:
    isolation, machine = told["isolation"], told["machine"]
    good = isolation["tier"] == "namespaces"
    verdict = "tasks of tier namespaces can run here" if good else "tasks of tier namespaces are refused here"
    yield styled(f"setpoint {told['setpoint']}: {verdict}", "green" if good else "red")
    yield f"  python     {told['python']['version']} at {told['python']['path']}"
    yield f"  machine    {machine['architecture']}, kernel {machine['kernel']}, uid {machine['uid']}"
    yield ""
    yield f"isolation: tier {isolation['tier']}, rung {isolation['rung']}"
    if isolation["bwrap"]:
        yield f"  bwrap      {isolation['bwrap']['version']} at {isolation['bwrap']['path']}"
    for name, here in (
        ("overlays", isolation["overlay"]),
        ("seccomp", isolation["seccomp"]),
        ("private tmpfs", isolation["private_tmpfs"]),
    ):
        yield f"  {name:<14} {'yes' if here else 'no'}"
    yield f"  cgroup         {isolation['cgroup'] or 'none that is writable'}"
    yield f"  Landlock       {(isolation['landlock_abi'] and 'ABI ' + str(isolation['landlock_abi'])) or 'no'}"
    enforced = [name for name, holds in isolation["limits"].items() if holds]
    lacking = [name for name, holds in isolation["limits"].items() if not holds]
    yield f"  limits held    {', '.join(enforced) or 'none'}"
    if lacking:
        yield styled(f"  NOT held       {', '.join(lacking)}", "yellow")
    yield from (f"  hint: {hint}" for hint in isolation["hints"])
    yield from (f"  tried: {failure}" for failure in isolation["failures"])
    yield ""
    yield "trust domains"
    for domain in told["trust_domains"]:
        yield f"  {domain['domain']}"
        yield f"    holds    {domain['holds']}"
        yield f"    kept by  {domain['kept_by']}"
    yield ""
    store = told["store"]
    yield f"store  {store['url']}"
    if store["usable"]:
        survives = {"power": "a power cut", "process": "the end of the process", "none": "nothing"}
        yield f"  what is acknowledged survives {survives.get(store['durability'], store['durability'])}"
    else:
        yield styled(f"  not usable: {store['problem']}", "red")
    yield f"state  {told['state']['home']} (mode {told['state']['mode']})"
    yield ""
    yield "extras"
    for extra in told["extras"]:
        have = "installed" if extra["installed"] else f"missing; {extra['get']}"
        yield f"  {extra['name']:<10} {have}  ({extra['for']})"
    yield f"not in this release: {', '.join(told['not_in_this_release'])}"
    if told["skipped_tests"]:
        yield "tests that would skip here"
        yield from (f"  - {reason}" for reason in told["skipped_tests"])

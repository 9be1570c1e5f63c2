"""``doctor``: what this machine can isolate, who is kept from whom and how, and what is missing.

Nothing is assumed: the sandbox is probed by running it, and every line is read from this installation.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from setpoint.adapters.approvers.signing import OWN_NAME
from setpoint.adapters.sandboxes.probe import Found, probe
from setpoint.adapters.stores import open_log
from setpoint.app.approvers import read_approvers
from setpoint.app.keys import PRIVATE_NAME
from setpoint.app.places import Places, find_places
from setpoint.cli.terminal import printable, say, say_json, styled
from setpoint.cli.wording import shown_url
from setpoint.kernel.errors import Fault, UsageFault
from setpoint.version import VERSION

EXIT_NO_ISOLATION: Final = 12
LIMITS: Final = ("wall", "cpu", "memory", "pids", "output", "disk")
EXTRAS: Final = {
    "openai": ("openai", "models behind an OpenAI-compatible endpoint"),
    "anthropic": ("anthropic", "Anthropic's models"),
    "http": ("httpx", "capabilities over HTTP"),
    "postgres": ("psycopg", "a store in a PostgreSQL database"),
    "pytest": ("pytest", "criteria that run pytest on Setpoint's own interpreter"),
}
"""By the name pip knows: the module it brings, and what for."""


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
        "approvals": _approvals(places),
        "extras": [_extra(name, module, use) for name, (module, use) in EXTRAS.items()],
        "postgres_server": _postgres_server(),
        "not_in_this_release": ["container sandbox", "the server", "MCP"],
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
            "holds": f"the log {shown_url(places.store_url)} and the signing key {places.keys / PRIVATE_NAME}",
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
    url = shown_url(places.store_url)
    kind = url.partition(":")[0]
    try:
        log = open_log(places.store_url, lambda: 0)
    except Fault as fault:
        return {"url": url, "kind": kind, "usable": False, "durability": None, "problem": fault.message}
    infos = log.streams()
    durability, kinds = log.durability, [info.kind for info in infos]
    import asyncio

    asyncio.run(log.close())
    counts = {"trajectories": kinds.count("trajectory"), "runs": kinds.count("run"), "sessions": kinds.count("session")}
    return {"url": url, "kind": kind, "usable": True, "durability": durability, **counts}


def _approvals(places: Places) -> dict[str, Any]:
    """Who may approve here, and what they can sign with."""
    told: dict[str, Any] = {
        "roster": str(places.approvers),
        "found": places.approvers.exists(),
        "approvers": 0,
        "own_key": str(places.keys / OWN_NAME) if (places.keys / OWN_NAME).exists() else None,
        "ssh_keygen": shutil.which("ssh-keygen"),
        "problem": None,
    }
    if told["found"]:
        try:
            told["approvers"] = len({one.name for one in read_approvers(places.approvers)})
        except UsageFault as fault:
            told["problem"] = fault.message
    return told


def _postgres_server() -> dict[str, Any]:
    """A server's programs, for the tests that start one of their own; or why those tests skip."""
    found = [os.path.dirname(os.path.realpath(path)) for path in [shutil.which("initdb")] if path]
    found += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    for directory in found:
        if all(os.access(f"{directory}/{name}", os.X_OK) for name in ("initdb", "postgres")):
            return {"programs": directory, "problem": None}
    return {"programs": None, "problem": "initdb and postgres were not found"}


def _extra(name: str, module: str, use: str) -> dict[str, Any]:
    installed = importlib.util.find_spec(module) is not None
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
    if (problem := _postgres_server()["problem"]) is not None:
        yield f"no PostgreSQL server ({problem}): tests of the Postgres store"
    elif importlib.util.find_spec("psycopg") is None:
        yield "psycopg is not installed: tests of the Postgres store"
    if shutil.which("ssh-keygen") is None:
        yield "ssh-keygen is not installed: approvals signed with SSH keys"
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
        yield f"  reachable; what is acknowledged survives {survives.get(store['durability'], store['durability'])}"
        yield f"  {store['trajectories']} trajectories, {store['runs']} runs, {store['sessions']} sessions"
    else:
        yield styled(f"  not usable: {store['problem']}", "red")
    yield f"state  {told['state']['home']} (mode {told['state']['mode']})"
    yield from _said_of_approvals(told["approvals"])
    yield ""
    yield "extras"
    for extra in told["extras"]:
        have = "installed" if extra["installed"] else f"missing; {extra['get']}"
        yield f"  {extra['name']:<10} {have}  ({extra['for']})"
    server = told["postgres_server"]
    yield f"  PostgreSQL {server['programs'] or server['problem']}  (a server that tests start)"
    yield f"not in this release: {', '.join(told['not_in_this_release'])}"
    if told["skipped_tests"]:
        yield "tests that would skip here"
        yield from (f"  - {reason}" for reason in told["skipped_tests"])


def _said_of_approvals(told: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "approvals"
    if told["problem"]:
        yield styled(f"  roster     cannot be used: {told['problem']}", "red")
    elif told["found"]:
        yield f"  roster     {told['roster']}: {told['approvers']} people"
    else:
        yield f"  roster     none at {told['roster']}; nobody can approve (setpoint approvers add NAME --role ROLE)"
    yield f"  own key    {told['own_key'] or 'made at first use'}"
    yield f"  ssh-keygen {told['ssh_keygen'] or 'not installed; SSH keys cannot sign here'}"

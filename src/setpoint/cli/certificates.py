"""Evidence anyone can recheck: ``certificate show``, ``export``, ``verify``."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from setpoint.app.keys import public_key, public_pem
from setpoint.app.manifest import load_task
from setpoint.app.places import find_places
from setpoint.app.runtime import Runtime
from setpoint.certificate import CHECKS, Approver, Report, read_approvers, read_public_key
from setpoint.certificate import verify as verify_bytes
from setpoint.certificate.__main__ import rendered
from setpoint.cli import finding
from setpoint.cli.terminal import printable, read_input, say, say_bytes, say_json, talk, write_output
from setpoint.kernel.errors import EvidenceMissing, UsageFault
from setpoint.kernel.keys import canonical

EXIT_DRIFT, EXIT_INVALID = 17, 19


def show(arguments: Namespace) -> int:
    """What was certified, and whether it still holds under this installation's key: 0, else 19."""
    with finding.opened(arguments) as runtime:
        name, data = _certificate(runtime, arguments.id)
        report = verify_bytes(data, [public_key(runtime.places.keys)])
    _say_report(arguments, report, {"trajectory_id": name})
    return 0 if report.valid else EXIT_INVALID


def export(arguments: Namespace) -> int:
    with finding.opened(arguments) as runtime:
        name, data = _certificate(runtime, arguments.id)
        pem = public_pem(public_key(runtime.places.keys)) if arguments.key_out else b""
    if arguments.output in (None, "-"):
        say_bytes(data)
    else:
        write_output(arguments.output, data)
        talk(f"the certificate of {name} is in {arguments.output}")
    if arguments.key_out:
        write_output(arguments.key_out, pem)
        talk(f"give {arguments.key_out} to verifiers by another way than the certificate")
    return 0


def verify(arguments: Namespace) -> int:
    """0 holds, 17 holds but the directory has drifted, 19 does not hold."""
    data = read_input(arguments.certificate, "the certificate")
    task = canonical(load_task(arguments.task).document) if arguments.task else None
    tree = Path(arguments.workspace) if arguments.workspace else None
    people = _people(arguments.approvers)
    report = verify_bytes(data, _trusted(arguments.key), task=task, tree=tree, approvers=people)
    _say_report(arguments, report, {"file": arguments.certificate})
    if not report.valid:
        return EXIT_INVALID
    return EXIT_DRIFT if report.drift else 0


def _certificate(runtime: Runtime, typed: str | None) -> tuple[str, bytes]:
    name = finding.trajectory(runtime, typed)
    record, _ = runtime.record(name)
    if record.certificate is None:
        raise EvidenceMissing(
            f"{name} has no certificate: it is {record.finished_reason or record.state}",
            hint=f"`setpoint why {name}` says what is missing.",
        )
    return name, runtime.log.payload(record.certificate.ref)


def _trusted(paths: list[str] | None) -> list[Ed25519PublicKey]:
    """The keys that were named, else the one of this installation."""
    if not paths:
        places = find_places()
        places.make()
        return [public_key(places.keys)]
    keys: list[Ed25519PublicKey] = []
    for path in paths:
        try:
            keys.append(read_public_key(read_input(path, "the key")))
        except ValueError as fault:
            raise UsageFault(f"{path} holds no public key: {fault}") from fault
    return keys


def _people(path: str | None) -> tuple[Approver, ...] | None:
    """Whose approvals count, from a roster in JSON; None: only signatures are checked."""
    if path is None:
        return None
    try:
        return read_approvers(read_input(path, "the roster"))
    except ValueError as fault:
        raise UsageFault(f"{path}: {fault}", hint="`setpoint approvers --json` writes one.") from fault


def _say_report(arguments: Namespace, report: Report, head: dict[str, Any]) -> None:
    if not arguments.json:
        say(printable("\n".join(rendered(report))))
        return
    say_json(
        head
        | {
            "valid": report.valid,
            "drift": report.drift,
            "checks": [
                {"name": c.name, "outcome": c.outcome, "findings": list(c.findings), "means": CHECKS[c.name]}
                for c in report.checks
            ],
            "certified": json.loads(json.dumps(report.predicate)),
        }
    )

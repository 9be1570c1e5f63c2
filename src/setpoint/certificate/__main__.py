"""``python -m setpoint.certificate verify FILE --key PUB``: exit 0 when the certificate holds, 19 when it does not."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .approvals import read_approvers
from .dsse import read_public_key
from .report import CHECKS, Report
from .verify import verify

EXIT_VALID, EXIT_USAGE, EXIT_DRIFT, EXIT_INVALID = 0, 2, 17, 19


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="setpoint.certificate", description="Recheck a certificate offline.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    asked = verbs.add_parser("verify", help="check a certificate file; exit 0 holds, 17 holds but drifted, 19 does not")
    asked.add_argument("file", type=Path, help="the certificate (NAME.cert.json)")
    asked.add_argument(
        "--key", type=Path, action="append", required=True, help="public key (PEM) you trust; may be repeated"
    )
    asked.add_argument("--task", type=Path, help="canonical JSON of the task you expect it to be about")
    asked.add_argument("--workspace", type=Path, help="directory to compare with the certified state now")
    asked.add_argument("--approvers", type=Path, help="JSON roster of the people whose approvals you accept")
    arguments = parser.parse_args(argv)
    try:
        keys = [read_public_key(path.read_bytes()) for path in arguments.key]
        task = arguments.task.read_bytes() if arguments.task else None
        approvers = read_approvers(arguments.approvers.read_bytes()) if arguments.approvers else None
        data = arguments.file.read_bytes()
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return EXIT_USAGE
    report = verify(data, keys, task=task, tree=arguments.workspace, approvers=approvers)
    print("\n".join(rendered(report)))
    if not report.valid:
        return EXIT_INVALID
    return EXIT_DRIFT if report.drift else EXIT_VALID


def rendered(report: Report) -> list[str]:
    """The report for people: each check, then what was certified and at what level."""
    lines: list[str] = []
    for check in report.checks:
        lines.append(f"{check.outcome:>8}  {check.name}: {CHECKS[check.name]}")
        lines.extend(f"          - {finding}" for finding in check.findings)
    if not report.valid:
        return [*lines, "", "NOT VALID: nothing this certificate says may be relied on."]
    return [*lines, "", *_facts(report.predicate)]


def _facts(said: dict[str, Any]) -> list[str]:
    level = said["level"]
    used, limit = said["budget"]["used"], said["budget"]["limit"]
    lines = [
        f"VALID  task {said['task']['name']} ({said['task']['digest']})",
        f"       state {said['state_digest']}",
        f"       level {level['reached']} (required {level['required']}); every criterion at least {level['weakest']}",
        f"       isolation {said['isolation']['tier']} ({said['isolation']['rung']})",
        f"       runtime {said['runtime']['version']}",
    ]
    for part in ("criteria", "invariants"):
        lines.extend(f"       {part}/{item['id']}: {item['verdict']} at {item['level_reached']}" for item in said[part])
    lines.append("       used " + ", ".join(f"{used[name]} of {limit[name]} {name}" for name in limit))
    return [*lines, f"       {said['covers']}"]


if __name__ == "__main__":
    sys.exit(main())

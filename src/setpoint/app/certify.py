"""Build, sign and seal the certificate of a converged trajectory."""

from __future__ import annotations

from pathlib import Path

from setpoint.app.keys import signing_key
from setpoint.certificate.bundle import seal
from setpoint.certificate.dsse import key_id
from setpoint.engine.pursuit import Pursuit
from setpoint.kernel.errors import EvidenceMissing
from setpoint.phases.p5_evidence.implicit import IMPLICIT
from setpoint.phases.p6_verdict.certificate import Uncertifiable, build_statement
from setpoint.ports.log import Log


def certify(p: Pursuit, log: Log, keys: Path) -> tuple[bytes, str, str]:
    """(bundle bytes, key id, level reached). EvidenceMissing when the log does not carry a certificate.

    Reads the log back, so everything emitted must have been handed over before.
    """
    key = signing_key(keys, workspace=Path(p.workspace.root))
    keyid = key_id(key.public_key())
    events = list(log.read(p.record.trajectory_id))
    statement = build_statement(p.task, (*IMPLICIT, *p.task.invariants), events, keyid)
    if isinstance(statement, Uncertifiable):
        raise EvidenceMissing(f"no certificate can be issued: {'; '.join(statement.problems)}", effect="settled")
    payloads = [log.payload(digest) for digest in statement.payloads]
    bundle = seal(statement.predicate, key, p.task.document, statement.envelopes, payloads)
    return bundle, keyid, statement.level

"""Recheck a certificate offline. Imports nothing of the runtime: only the standard library and ``cryptography``.

    from setpoint.certificate import read_public_key, verify
    report = verify(Path("fix.cert.json").read_bytes(), [read_public_key(Path("signing.pub").read_bytes())])
    report.require_valid()

This folder works on its own: copy it anywhere and run ``python -m certificate verify FILE --key PUB``.
"""

from .approvals import Approver, read_approvers
from .bundle import seal
from .dsse import key_id, read_public_key
from .report import CHECKS, Check, Invalid, Report
from .tree import tree_digest
from .verify import content, verify

__all__ = [
    "CHECKS",
    "Approver",
    "Check",
    "Invalid",
    "Report",
    "content",
    "key_id",
    "read_approvers",
    "read_public_key",
    "seal",
    "tree_digest",
    "verify",
]

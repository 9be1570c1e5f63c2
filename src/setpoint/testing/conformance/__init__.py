"""One conformance suite a port: what an adapter of your own must keep, as pytest classes.

    from setpoint.testing.conformance import LogSuite

    class TestMyLog(LogSuite):
        @pytest.fixture
        def open_log(self, tmp_path):
            return lambda clock: MyLog(tmp_path / "log.db", clock)

A suite's docstring says which fixtures to override; its tests' docstrings are the sentences of the port. Setpoint's own
adapters and fakes run the same classes. Needs pytest (``pip install 'setpoint[pytest]'``).
"""

import pytest

_MODULES = (
    "approvers",
    "clock",
    "effector",
    "log",
    "log_beside",
    "log_statements",
    "proposer",
    "sandbox",
    "verifier",
    "views",
    "workspace",
)
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES))  # a failing assertion shows its values

from setpoint.testing.conformance.approvers import ApproversSuite, Person  # noqa: E402
from setpoint.testing.conformance.clock import ClockSuite  # noqa: E402
from setpoint.testing.conformance.effector import EffectorSuite, OtherSide  # noqa: E402
from setpoint.testing.conformance.log import LogSuite  # noqa: E402
from setpoint.testing.conformance.log_statements import StatementSuite  # noqa: E402
from setpoint.testing.conformance.proposer import Act, Played, ProposerSuite  # noqa: E402
from setpoint.testing.conformance.sandbox import SandboxSuite  # noqa: E402
from setpoint.testing.conformance.verifier import VerifierSuite  # noqa: E402
from setpoint.testing.conformance.workspace import WorkspaceSuite  # noqa: E402

__all__ = [
    "Act",
    "ApproversSuite",
    "ClockSuite",
    "EffectorSuite",
    "LogSuite",
    "OtherSide",
    "Person",
    "Played",
    "ProposerSuite",
    "SandboxSuite",
    "StatementSuite",
    "VerifierSuite",
    "WorkspaceSuite",
]

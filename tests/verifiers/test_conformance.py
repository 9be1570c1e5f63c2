"""Our judge of commands keeps the promises of ``setpoint.ports.verifier``, in a real sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.adapters.verifiers.judge import CheckVerifier
from setpoint.kernel.contract import Environment, Limits
from setpoint.ports.sandbox import Sandbox
from setpoint.ports.verifier import Verifier
from setpoint.testing.conformance import VerifierSuite


class TestCheckVerifier(VerifierSuite):
    @pytest.fixture
    def open_verifier(self, sandbox: Sandbox) -> Callable[[Path], Verifier]:
        # Hosts that the actions of a task may reach are none of its checks' concern.
        return lambda workspace: CheckVerifier(
            sandbox, Environment(str(workspace), limits=Limits(wall_ms=30_000), network=("example.org:443",))
        )

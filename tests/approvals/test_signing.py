"""Signing: with our own key file, and with SSH keys through ssh-keygen."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.approvals.openssh import needs_openssh, openssh_accepts, private_file
from tests.approvals.people import NOW_MS, private, public, ticket

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.adapters.approvers.signing import OWN_NAME, own_key, own_public_line, sign_decision
from setpoint.kernel.errors import UsageFault
from setpoint.kernel.quorum import Entitled, Granted, rule_on
from setpoint.kernel.ticket import SignedDecision, decision_bytes, read_signed, signed_bytes
from setpoint.testing.clock import FakeClock

pytestmark = pytest.mark.usefixtures("no_terminal")


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh-keygen may ask nobody, whoever runs the tests."""
    for name in ("SSH_ASKPASS", "SSH_AUTH_SOCK", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setattr(os, "isatty", lambda fd: False)


def signed_by(path: Path, reason: str = "checked") -> SignedDecision:
    return sign_decision(ticket(), "approve", "anna", NOW_MS, reason, path)


def entitled(signed: SignedDecision, key: str) -> Entitled:
    found = Roster([Approver("anna", ("ops",), key)], FakeClock(NOW_MS)).verify(signed, ticket())
    assert isinstance(found, Entitled), found
    return found


def test_the_own_key_is_made_once_and_its_decisions_count(tmp_path: Path) -> None:
    """R123, R124"""
    path = own_key(tmp_path / "keys")
    assert path == own_key(tmp_path / "keys") == tmp_path / "keys" / OWN_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    signed = read_signed(signed_bytes(signed_by(path)))
    assert rule_on(ticket(), [entitled(signed, own_public_line(path))], NOW_MS) == Granted(("anna",))


def test_an_own_key_that_others_could_read_signs_nothing(tmp_path: Path) -> None:
    """L9"""
    path = own_key(tmp_path)
    path.chmod(0o640)
    for use in (lambda: signed_by(path), lambda: own_key(tmp_path), lambda: own_public_line(path)):
        with pytest.raises(UsageFault, match=r"the approver key .* mode 0640.*prove nothing"):
            use()


def test_a_file_that_is_no_key_signs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageFault, match=r"No such file.*nothing was decided"):
        signed_by(path)
    path.write_text("secret")
    with pytest.raises(UsageFault, match="neither an OpenSSH key nor"):
        signed_by(path)
    with pytest.raises(UsageFault, match="Is a directory"):
        signed_by(tmp_path)
    with pytest.raises(UsageFault, match="reason has 1001 characters"):
        signed_by(own_key(tmp_path), "x" * 1001)


@needs_openssh
def test_what_ssh_keygen_signs_counts_and_openssh_says_the_same(tmp_path: Path) -> None:
    """R123, R124"""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    signed = read_signed(signed_bytes(signed_by(tmp_path / "id", "geprüft, 'ok'\n")))
    line = (tmp_path / "id.pub").read_text()
    assert signed.scheme == "sshsig"
    assert entitled(signed, line).key == signed.key
    assert openssh_accepts(tmp_path, line, decision_bytes(signed.decision), signed.signature)


@needs_openssh
def test_a_file_name_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    private_file(tmp_path / "-n", private("anna"))
    assert entitled(signed_by(Path("-n")), public("anna"))


@needs_openssh
def test_an_agent_signs_for_a_public_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R124"""
    socket = tmp_path / "agent"
    if len(str(socket)) > 100:
        pytest.skip("the temporary directory is too deep for a socket")
    key = private_file(tmp_path / "id", private("anna"))
    (tmp_path / "id.pub").write_text(public("anna") + "\n")
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            agent.stdout.readline()  # it says where it listens once it does
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            subprocess.run(["ssh-add", "-q", key], check=True, capture_output=True, timeout=60)
            key.unlink()
            assert entitled(signed_by(tmp_path / "id.pub"), public("anna"))
        finally:
            agent.terminate()


@needs_openssh
def test_a_key_with_a_passphrase_nobody_gives_signs_nothing(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", tmp_path / "id"], check=True)
    with pytest.raises(UsageFault, match=r"ssh-keygen could not sign with .*nothing was decided\n.*ssh-add"):
        signed_by(tmp_path / "id")


@needs_openssh
def test_a_key_of_another_type_is_named(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    path = tmp_path / "id"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(UsageFault, match=r"keys of type ssh-rsa cannot approve.*nothing was decided"):
        signed_by(path)


@needs_openssh
def test_a_private_ssh_key_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    """L9: ssh-keygen itself refuses"""
    path = private_file(tmp_path / "id", private("anna"))
    path.chmod(0o644)
    with pytest.raises(UsageFault, match=r"UNPROTECTED|too open|permissions"):
        signed_by(path)


def test_without_ssh_keygen_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = private_file(tmp_path / "id", private("anna"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageFault, match=r"ssh-keygen is not installed.*\n.*Install the OpenSSH client"):
        signed_by(path)


@pytest.mark.parametrize("answer", ["", "garbage", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----"])
def test_an_ssh_keygen_that_answers_nonsense_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    fake = tmp_path / "ssh-keygen"
    fake.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.buffer.read()\nprint({answer!r})\n")
    fake.chmod(0o700)
    path = private_file(tmp_path / "id", private("anna"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageFault, match="nothing was decided"):
        signed_by(path)


def test_an_ssh_keygen_that_waits_for_a_touch_for_ever_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7"""
    monkeypatch.setattr("setpoint.adapters.approvers.signing.SSH_SIGN_MS_MAX", 300)
    fake = tmp_path / "ssh-keygen"
    fake.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    fake.chmod(0o700)
    path = private_file(tmp_path / "id", private("anna"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageFault, match="did not sign within"):
        signed_by(path)

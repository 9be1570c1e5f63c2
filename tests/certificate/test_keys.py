"""The signing key's file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from setpoint.app import keys
from setpoint.certificate import dsse
from setpoint.kernel.errors import StoreFault, UsageFault


def private_file(state: Path) -> Path:
    return state / keys.PRIVATE_NAME


def test_the_first_use_makes_a_key_and_later_uses_read_it(tmp_path: Path) -> None:
    first = keys.signing_key(tmp_path)
    assert keys.signing_key(tmp_path).private_bytes_raw() == first.private_bytes_raw()
    assert keys.public_key(tmp_path).public_bytes_raw() == first.public_key().public_bytes_raw()


def test_only_the_owner_can_read_the_key_whatever_the_umask(tmp_path: Path) -> None:
    """L9"""
    before = os.umask(0)
    try:
        keys.signing_key(tmp_path / "state")
    finally:
        os.umask(before)
    path = private_file(tmp_path / "state")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == [keys.PRIVATE_NAME]


def test_the_exported_public_key_is_what_a_verifier_reads(tmp_path: Path) -> None:
    path = keys.public_file(tmp_path)
    read = dsse.read_public_key(path.read_bytes())
    assert read.public_bytes_raw() == keys.public_key(tmp_path).public_bytes_raw()
    assert keys.public_file(tmp_path) == path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_key_others_could_touch_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    keys.signing_key(tmp_path)
    private_file(tmp_path).chmod(mode)
    with pytest.raises(UsageFault, match=f"mode {mode:04o}.*prove nothing"):
        keys.signing_key(tmp_path)
    assert stat.S_IMODE(private_file(tmp_path).stat().st_mode) == mode


def test_a_key_directory_others_can_write_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    keys.signing_key(state)
    state.chmod(0o777)
    with pytest.raises(UsageFault, match="replace the signing key"):
        keys.signing_key(state)


def test_a_link_or_pipe_in_place_of_the_key_is_refused(tmp_path: Path) -> None:
    keys.signing_key(tmp_path)
    path = private_file(tmp_path)
    path.rename(tmp_path / "elsewhere.pem")
    path.symlink_to(tmp_path / "elsewhere.pem")
    with pytest.raises(StoreFault):
        keys.signing_key(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(UsageFault, match="regular file"):
        keys.signing_key(tmp_path)


def test_damaged_and_foreign_keys_are_refused_and_never_replaced(tmp_path: Path) -> None:
    keys.signing_key(tmp_path)
    path = private_file(tmp_path)
    path.write_bytes(b"not a key")
    with pytest.raises(UsageFault, match="no readable private key"):
        keys.signing_key(tmp_path)
    assert path.read_bytes() == b"not a key"
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(UsageFault, match="Ed25519"):
        keys.signing_key(tmp_path)


def test_the_key_never_lies_inside_the_workspace(tmp_path: Path) -> None:
    """L9"""
    workspace = tmp_path / "work"
    workspace.mkdir()
    (tmp_path / "link").symlink_to(workspace)
    for state in (workspace, workspace / ".setpoint", tmp_path / "link" / "deep"):
        with pytest.raises(UsageFault, match="inside the workspace"):
            keys.signing_key(state, workspace=workspace)
    assert list(workspace.iterdir()) == []
    keys.signing_key(tmp_path / "state", workspace=workspace)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_cannot_be_written_is_a_clear_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreFault, match="nothing can be certified"):
            keys.signing_key(tmp_path / "state")
    finally:
        tmp_path.chmod(0o700)


def test_processes_that_race_for_the_first_use_get_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from setpoint.app.keys import signing_key\n"
        "sys.stdin.readline()\n"
        "print(signing_key(Path(sys.argv[1])).private_bytes_raw().hex())"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for racer in racers:  # all have imported or are importing; let them go together
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    found = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert all(racer.returncode == 0 for racer in racers)
    assert found == {keys.signing_key(tmp_path).private_bytes_raw().hex()}
    assert os.listdir(private_file(tmp_path).parent) == [keys.PRIVATE_NAME]

"""A private Postgres server for tests: started for one test session on a Unix socket, gone with it."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_S = 30.0
STOP_S = 20.0


class NoServer(Exception):
    """Why none can be started here."""


@dataclass(frozen=True)
class Server:
    """``fsync`` is off: what a test kills is a process, never the machine."""

    directory: Path
    process: subprocess.Popen[bytes]
    user: str

    def url(self, database: str) -> str:
        return f"postgresql://{self.user}@/{database}?host={self.directory}"


@contextlib.contextmanager
def started() -> Iterator[Server]:
    """A server of its own. It is ended with the block, and by the kernel should this process be killed. NoServer."""
    binaries = find_binaries()
    account = who_may_run_it()
    prefix = as_account(account)
    directory = Path(tempfile.mkdtemp(prefix="setpoint-pg-"))  # not pytest's: another user has to get there
    try:
        if account is not None:
            os.chown(directory, account.pw_uid, account.pw_gid)
        data = directory / "data"
        made = subprocess.run(
            [*prefix, f"{binaries}/initdb", "-D", data, "-U", "setpoint", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync", "--no-instructions"],
            capture_output=True, text=True, cwd=directory,
        )  # fmt: skip
        if made.returncode != 0:
            raise NoServer(f"initdb failed: {made.stderr.strip()}")
        with open(
            data / "postgresql.conf", "a"
        ) as settings:  # here, so that a test may say otherwise with ALTER SYSTEM
            settings.write("fsync = off\nfull_page_writes = off\n")
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen(
                [*prefix, f"{binaries}/postgres", "-D", data, "-k", directory, "-c", "listen_addresses=",
                 "-c", "shared_buffers=16MB",
                 "-c", "max_connections=50", "-c", "unix_socket_permissions=0777"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
            )  # fmt: skip
        try:
            server = Server(directory, process, "setpoint")
            wait_until_it_answers(server)
            yield server
        finally:
            stop(process)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_binaries() -> str:
    """The directory of ``initdb`` and ``postgres``."""
    found = [os.path.dirname(os.path.realpath(path)) for path in [shutil.which("initdb")] if path]
    found += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    for directory in found:
        if all(os.access(f"{directory}/{name}", os.X_OK) for name in ("initdb", "postgres")):
            return directory
    raise NoServer("no PostgreSQL server is installed (initdb and postgres were not found)")


def who_may_run_it() -> pwd.struct_passwd | None:
    """The account the server runs under, None for our own: it refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoServer("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def as_account(account: pwd.struct_passwd | None) -> list[str]:
    """A prefix that changes to the account, and has the kernel end the program with us. Both end in an exec."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if account is None:
            return []
        raise NoServer("PostgreSQL does not run as root, and setpriv, which would change the user, was not found")
    prefix = [setpriv, "--pdeathsig=KILL"]
    if account is not None:
        prefix += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return [*prefix, "--"]


def wait_until_it_answers(server: Server) -> None:
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(server.url("postgres")).close()
            return
        except psycopg.OperationalError as error:
            if server.process.poll() is not None or time.monotonic() > deadline:
                said = (server.directory / "log").read_text(errors="replace")
                raise NoServer(f"the server does not answer: {error}; it said: {said[-2000:]}") from error
            time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown; the postmaster ends its children and is waited for."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)
        process.wait(STOP_S)

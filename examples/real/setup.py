"""Lay out the three packages of examples/real as git repositories of one commit.

    python examples/real/setup.py [--dest DIR] [--force] [NAME ...]

Each source archive is downloaded by pip at the version that the task's facts.json pins, compared with the sha256
pinned there, unpacked into DIR/NAME (default: build/real/NAME) and committed with a fixed author and date, so the
commit has the same id everywhere. Archives are kept in DIR/.downloads; a second run needs no network.
Exit codes: 0 laid out, 1 something is not as pinned, 3 an archive could not be had.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEST = HERE.parents[1] / "build" / "real"
NAMES = tuple(sorted(path.parent.name for path in HERE.glob("*/facts.json")))

PIP_TIMEOUT_S = 120  # of one download; pip itself gives up on a silent connection after 20 s

# Everything that goes into a commit id, apart from the files.
COMMIT_ENV = {
    "GIT_AUTHOR_NAME": "Setpoint examples",
    "GIT_AUTHOR_EMAIL": "examples@setpoint.dev",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "Setpoint examples",
    "GIT_COMMITTER_EMAIL": "examples@setpoint.dev",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+0000",
}


class SetupFault(Exception):
    """Something is not as pinned; the message says what and what to do."""


class IndexUnreachable(SetupFault):
    """pip could not get an archive. Nothing was laid out for that package."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Which archive, which bytes, and the commit they become."""

    name: str
    version: str
    sha256: str
    commit: str

    @property
    def archive(self) -> str:
        return f"{self.name}-{self.version}.tar.gz"


def pin(name: str) -> Pin:
    facts = json.loads((HERE / name / "facts.json").read_text())
    return Pin(name, facts["version"], facts["sha256"], facts["commit"])


def is_pinned(archive: Path, wanted: Pin) -> bool:
    return archive.is_file() and hashlib.sha256(archive.read_bytes()).hexdigest() == wanted.sha256


def fetch(wanted: Pin, downloads: Path) -> Path:
    """The archive with the pinned bytes, from ``downloads`` or else through pip.

    pip checks the hash before it looks into the archive (it reads a source archive's metadata by running its build).
    """
    downloads.mkdir(parents=True, exist_ok=True)
    archive = downloads / wanted.archive
    if is_pinned(archive, wanted):
        return archive
    with tempfile.TemporaryDirectory(prefix="setpoint-real-") as scratch:
        requirements = Path(scratch, "requirements.txt")
        requirements.write_text(f"{wanted.name}=={wanted.version} --hash=sha256:{wanted.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += [
            "--no-binary",
            ":all:",
            "--no-deps",
            "--require-hashes",
            "--retries",
            "1",
            "--timeout",
            "20",
        ]
        command += ["--dest", scratch, "--requirement", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as late:
            raise IndexUnreachable(
                f"{wanted.archive} was not there after {PIP_TIMEOUT_S} s; check the network and run this again"
            ) from late
        if "DO NOT MATCH THE HASHES" in done.stderr:
            raise SetupFault(f"{wanted.archive} from the package index is not the pinned one: {done.stderr.strip()}")
        fresh = Path(scratch, wanted.archive)
        if done.returncode != 0 or not fresh.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"pip ended with {done.returncode}"]
            raise IndexUnreachable(
                f"{wanted.archive} could not be downloaded ({last[0]}); check the network and run this again"
            )
        if not is_pinned(fresh, wanted):
            raise SetupFault(f"{wanted.archive} from the package index does not have sha256 {wanted.sha256}")
        shutil.copyfile(fresh, archive.with_suffix(".part"))
        os.replace(archive.with_suffix(".part"), archive)
    return archive


def git(repository: Path, *arguments: str) -> str:
    """Run git with no settings but ours: neither a user's configuration nor hooks may change the commit."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **COMMIT_ENV}
    settings = [
        "core.autocrlf=false",
        "core.fileMode=true",
        "core.hooksPath=/dev/null",
        "core.excludesFile=/dev/null",
    ]
    settings += ["core.fsmonitor=false"]
    command = ["git", *(word for setting in settings for word in ("-c", setting)), *arguments]
    done = subprocess.run(command, cwd=repository, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupFault(f"git {' '.join(arguments)} in {repository} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def unpack(archive: Path, wanted: Pin, repository: Path) -> None:
    """Unpack the archive's one folder as ``repository``, with modes that depend on the archive only."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=repository.parent) as scratch:
        with tarfile.open(archive) as bundle:
            bundle.extractall(scratch, filter="data")
        tree = Path(scratch, f"{wanted.name}-{wanted.version}")
        for path in tree.rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.replace(tree, repository)
    repository.chmod(0o755)


def lay_out(name: str, dest: Path, *, force: bool = False) -> Path:
    """DIR/NAME as a clean repository at the pinned commit; one that already is there is left alone.

    SetupFault when DIR/NAME holds anything else, unless ``force`` says that it may be replaced.
    """
    wanted, repository = pin(name), dest / name
    if repository.exists() and not force:
        if not (repository / ".git").is_dir():
            raise SetupFault(f"{repository} is not a repository of this script; move it away or use --force")
        if git(repository, "rev-parse", "HEAD") == wanted.commit and not git(repository, "status", "--porcelain"):
            return repository
        raise SetupFault(f"{repository} has changed since it was laid out; use --force to lay it out anew")
    archive = fetch(wanted, dest / ".downloads")
    if repository.exists():
        shutil.rmtree(repository)
    unpack(archive, wanted, repository)
    git(repository, "init", "--quiet", "--template=", "--object-format=sha1", "--initial-branch=main")
    git(repository, "add", "--all", "--force")
    message = f"{wanted.name} {wanted.version} as published"
    git(repository, "-c", "commit.gpgsign=false", "commit", "--quiet", "--message", message)
    commit = git(repository, "rev-parse", "HEAD")
    if commit != wanted.commit:
        raise SetupFault(f"{repository} became commit {commit}, but {wanted.commit} is pinned in {name}/facts.json")
    return repository


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--dest", type=Path, default=DEST, help="default: build/real of this checkout")
    parser.add_argument("--force", action="store_true", help="replace what is there")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no task {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    try:
        for name in options.names or NAMES:
            print(lay_out(name, options.dest.absolute(), force=options.force))
    except IndexUnreachable as fault:
        print(f"setup: {fault}", file=sys.stderr)
        return 3
    except SetupFault as fault:
        print(f"setup: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""pytest plugin of a sealed check, loaded by ``-p`` before any conftest file and before the candidate's code.

It takes the name of the report from standard input, which only this process can read and only once, so that code
which merely writes a file called junit.xml has forged nothing; it refuses tests outside the sealed files; and it takes
its own options out of the environment, so that a pytest started by a test is not changed by them.

What it cannot do: code of the candidate that a test imports runs in this very process and can change pytest itself.
Checks that must withstand that use an oracle.
"""

import os
import sys
from pathlib import Path

import pytest

_OUT = os.environ.get("OUT", "")
_SEALED = Path(os.environ.get("SEALED", "/sealed"))


def _read_report_name() -> str:
    """One line from descriptor 0, byte by byte so that nothing behind it is consumed."""
    name = bytearray()
    while len(name) < 64 and (byte := os.read(0, 1)) not in (b"", b"\n"):
        name += byte
    return name.decode("ascii", "replace")


_REPORT = _read_report_name()
os.environ.pop("PYTEST_ADDOPTS", None)


def _inside_sealed(path: Path) -> bool:
    return path == _SEALED or _SEALED in path.parents


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    sys.pycache_prefix = "/tmp/.pycache"  # pytest keeps rewritten tests beside their source; those count for nothing
    if not _REPORT:
        raise pytest.UsageError("a sealed check runs pytest once and leaves standard input to it")
    here = Path.cwd()
    named = [str(arg).partition("::")[0] for arg in early_config.known_args_namespace.file_or_dir]
    for place in named or [str(here)]:
        where = Path(os.path.normpath(here / place))
        if not _inside_sealed(where):
            raise pytest.UsageError(f"a sealed check runs tests below $SEALED only, not {where}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.option.xmlpath = os.path.join(_OUT, _REPORT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    strangers = sorted({str(item.path) for item in items if not _inside_sealed(item.path)})
    if strangers:
        raise pytest.UsageError(f"a sealed check runs tests below $SEALED only, not {strangers[0]}")

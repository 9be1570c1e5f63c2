"""Inside the sandbox of a sealed check: order Python's import path so that the candidate comes last.

Python imports this at start-up, before anything else, because this folder is the only one on PYTHONPATH. With
PYTHONSAFEPATH the working folder is not on the path at all; here it is appended behind the standard library, the
toolchain and the sealed files, so a candidate's ``random.py`` or ``pytest.py`` shadows nothing.

Below the sealed files and the candidate, modules are compiled from source: stored bytecode there is covered by no
digest (sealed) or may differ from the source beside it (candidate). The toolchain keeps its bytecode; compiling the
library anew costs half a second a check.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from types import CodeType, ModuleType

_SEALED = os.environ.get("SEALED", "")
_CANDIDATE = [entry for entry in os.environ.get("SETPOINT_CANDIDATE_PATH", "").split(os.pathsep) if entry]


class _FromSource(SourceFileLoader):
    """Neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _from_source(path: str) -> FileFinder:
    """A path hook for what lies below the sealed files and the candidate; ImportError leaves the rest to others."""
    ours = any(path == root or path.startswith(root + os.sep) for root in (_SEALED, *_CANDIDATE) if root)
    if not ours or not os.path.isdir(path):  # a script named on the command line is offered to path hooks as well
        raise ImportError(path)
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_FromSource, SOURCE_SUFFIXES))


class _SealedNames:
    """Finds a top-level name in the sealed files before the candidate can offer a package of the same name.

    Needed for folders without ``__init__.py``: on the plain path, a regular package further back would win over them.
    """

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        return PathFinder.find_spec(fullname, [_SEALED])


def _arrange() -> None:
    sys.path_hooks.insert(0, _from_source)
    if _SEALED and os.path.isdir(_SEALED):
        sys.path.append(_SEALED)
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _SealedNames)
    sys.path.extend(entry for entry in _CANDIDATE if entry not in sys.path and os.path.isdir(entry))


_arrange()

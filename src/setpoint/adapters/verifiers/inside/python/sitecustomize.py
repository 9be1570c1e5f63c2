"""Inside the sandbox of a sealed check: order Python's import path so that the candidate comes last.

Python imports this at start-up, before anything else, because this folder is the only one on PYTHONPATH. With
PYTHONSAFEPATH the working folder is not on the path at all; here it is appended behind the standard library, the
toolchain and the sealed files, so a candidate's ``random.py`` or ``pytest.py`` shadows nothing.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

_SEALED = os.environ.get("SEALED", "")


class _SealedNames:
    """Finds a top-level name in the sealed files before the candidate can offer a package of the same name.

    Needed for folders without ``__init__.py``: on the plain path, a regular package further back would win over them.
    """

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if path is not None or fullname in sys.stdlib_module_names:
            return None
        return PathFinder.find_spec(fullname, [_SEALED])


def _arrange() -> None:
    if _SEALED and os.path.isdir(_SEALED):
        sys.path.append(_SEALED)
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _SealedNames)  # type: ignore[arg-type]
    for entry in os.environ.get("SETPOINT_CANDIDATE_PATH", "").split(os.pathsep):
        if entry and entry not in sys.path and os.path.isdir(entry):
            sys.path.append(entry)


_arrange()

"""From a name to the application it means: ``module:attribute``, or ``path/to/file.py:attribute``.

The name comes from the caller, else from ``SETPOINT_APP``, else from ``[tool.setpoint] app`` in the working folder's
pyproject.toml. Without an attribute, the only App of the module is meant. Loading runs the user's module; whatever it
raises is told with the user's own file and line.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from setpoint.kernel.errors import Fault, UsageFault

if TYPE_CHECKING:
    from setpoint.app.application import App
    from setpoint.app.runs import Runs
    from setpoint.app.runtime import Runtime
    from setpoint.engine.runs.program import Code
    from setpoint.kernel.run_record import RunRecord

VARIABLE: Final = "SETPOINT_APP"
_HINT: Final = f"Name it with --app module:app or --app path/to/file.py:app, or set {VARIABLE}."
_OWN: Final = str(Path(__file__).resolve().parent.parent) + os.sep


class AppFault(UsageFault):
    """The application cannot be loaded; nothing was started."""


@dataclass(frozen=True, slots=True)
class AppName:
    """What names an application, and where that was said."""

    text: str
    source: str


def app_name(typed: str | None) -> AppName | None:
    """The name that holds: ``typed``, the environment's, the working folder's. None when nobody named one."""
    if typed:
        return AppName(typed, "--app")
    if os.environ.get(VARIABLE):
        return AppName(os.environ[VARIABLE], VARIABLE)
    return _of_project(Path("pyproject.toml"))


def _of_project(path: Path) -> AppName | None:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise AppFault(f"{path} cannot be read: {fault}", hint=_HINT) from fault
    found = document.get("tool", {}).get("setpoint", {}).get("app")
    if found is None:
        return None
    if not isinstance(found, str) or not found:
        raise AppFault(f"[tool.setpoint] app of {path} is {found!r}, not a text such as 'support:app'")
    return AppName(found, str(path))


def load_app(typed: str | None) -> App:
    """The application. AppFault when none is named, it cannot be imported, or the name is no App."""
    name = app_name(typed)
    if name is None:
        raise AppFault("no application was named, so there are no workflows", hint=_HINT)
    place, _, attribute = name.text.rpartition(":") if ":" in name.text else (name.text, "", "")
    if not place:
        raise AppFault(f"{name.text!r} (of {name.source}) names no module", hint=_HINT)
    module = _file_module(place, name) if _is_file(place) else _named_module(place, name)
    return _attribute(module, attribute, name) if attribute else _only_app(module, name)


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _file_module(place: str, name: AppName) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise AppFault(f"there is no file {place} (named by {name.source})", hint=_HINT)
    # Under its own name, so that the types in it are found there, unless that name is another module's already.
    own = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"setpoint_app_{abs(hash(path))}"
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(own, path)
    if spec is None or spec.loader is None:
        raise AppFault(f"{place} is no Python file", hint=_HINT)
    _beside(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(own, None)
        raise _raised(error, place) from error
    return module


def _named_module(place: str, name: AppName) -> ModuleType:
    _beside(os.getcwd())
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise _raised(error, place) from error
        raise AppFault(
            f"there is no module {place!r} (named by {name.source}), neither installed nor in {os.getcwd()}", hint=_HINT
        ) from error
    except BaseException as error:
        raise _raised(error, place) from error


def _beside(directory: str) -> None:
    """What lies beside the application can be imported by it, as when Python runs its file."""
    if directory not in sys.path:
        sys.path.insert(0, directory)


def _attribute(module: ModuleType, attribute: str, name: AppName) -> App:
    from setpoint.app.application import App

    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            known = ", ".join(_apps(module)) or "none"
            raise AppFault(f"{name.text} (of {name.source}): {found!r} has no {part!r}; its apps: {known}") from error
    if not isinstance(found, App):
        raise AppFault(f"{name.text} (of {name.source}) is {found!r}, which is no setpoint.App")
    return found


def _only_app(module: ModuleType, name: AppName) -> App:
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    said = f"holds {len(apps)} apps: {', '.join(apps)}" if apps else "holds no setpoint.App"
    raise AppFault(f"{name.text} (of {name.source}) {said}", hint=f"Write {name.text}:NAME.")


def _apps(module: ModuleType) -> dict[str, App]:
    from setpoint.app.application import App

    return {key: value for key, value in vars(module).items() if isinstance(value, App)}


def _raised(error: BaseException, place: str) -> BaseException:
    """What importing raised, with the place in the user's code. An interrupt stays what it is."""
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return error
    where = _where(error) or place
    if isinstance(error, Fault):  # a definition that cannot be: our own words, and where it is written
        return AppFault(f"{where}: {error.message}", hint=error.hint)
    said = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    hint = "SETPOINT_DEBUG=1 shows the whole traceback."
    if isinstance(error, ImportError) and "relative import" in str(error):
        hint = "A file of a package is named as a module: --app package.module:app"
    return AppFault(f"{where}: importing the application {place} raised {said}; nothing was started", hint=hint)


def _where(error: BaseException) -> str:
    """``file:line`` of the innermost line that is the user's: not Setpoint's, not the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    trace: TracebackType | None = error.__traceback__
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith(("<frozen", _OWN)) and frame.filename != importlib.__file__
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


# Without the application


def runs_without_code(runtime: Runtime, *records: RunRecord) -> Runs:
    """Runs that know the definitions of ``records`` from the log, and none of the code.

    Enough to tell a run something, and to pause or end one that has nothing to take back. AppFault where a node would
    have to be done.
    """
    from setpoint.adapters.approvers.roster import Roster
    from setpoint.adapters.stores import this_owner
    from setpoint.app.approvers import read_approvers
    from setpoint.app.runs import Runs
    from setpoint.engine.runs.program import Program
    from setpoint.kernel.flow import read_definition

    programs: dict[str, Program] = {}
    for record in records:
        assert record.definition is not None
        definition = read_definition(runtime.log.payload(record.definition.ref))
        code = _NoCode(record.workflow)
        programs[record.definition_digest] = Program(definition, code, {}, _unchanged, _begins_nothing)
    known = read_approvers(runtime.places.approvers) if runtime.places.approvers.exists() else ()
    return Runs(runtime.log, runtime.clock, this_owner(), programs, Roster(known, runtime.clock))


class _NoCode(dict[str, "Code"]):
    """The code of a workflow whose application is not loaded: asking for it is an AppFault."""

    def __init__(self, workflow: str) -> None:
        super().__init__()
        self._workflow = workflow

    def __missing__(self, path: str) -> Code:
        raise AppFault(f"{path} has to be done, and the application of {self._workflow} is not loaded", hint=_HINT)


def _unchanged(values: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    return values


def _begins_nothing(given: Any) -> Any:
    raise AppFault("a run cannot be started without its application", hint=_HINT)

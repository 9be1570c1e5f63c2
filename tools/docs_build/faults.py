"""reference/faults.md."""

from __future__ import annotations

import inspect

from docs_build.markdown import page, prose
from setpoint.app.manifest import ManifestFault
from setpoint.kernel import errors


def fault_classes() -> list[type[errors.Fault]]:
    """Every fault, in the order of the source, the manifest's own last."""
    own = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.Fault)]
    return [*own, ManifestFault]


def faults() -> str:
    blocks = [
        (
            "A fault is an exception for something outside the rules of the loop. Its class says whose it is; its "
            "field `effect` says what is known of an effect: `not_sent`, `settled` or `in_doubt`. `message` says "
            "what happened with its values, `hint` what to do. A refusal, a failing check or a budget that is "
            "used up is no fault: those are outcomes, with an exit code in `Outcome.exit_code`."
        ),
        "Every class can be imported from `setpoint`.",
    ]
    for cls in fault_classes():
        parent = cls.__mro__[1].__name__
        kind = "" if cls is errors.Fault else f" A `{parent}`."
        blocks.append(f"## {cls.__name__}\n\n{prose(inspect.getdoc(cls))}\n\nExit code {cls.exit_code}.{kind}")
    return page("Faults", "`src/setpoint/kernel/errors.py`", *blocks)

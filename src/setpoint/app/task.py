"""The contract as a library user meets it: ``Task.load("fix.yaml")``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from setpoint.app.declare import document_of
from setpoint.app.manifest import load_task, load_tasks, manifests_of
from setpoint.kernel import contract


class Task(contract.Task):
    """A loaded task contract; immutable. Everywhere a ``kernel.contract.Task`` is asked for, this is one."""

    __slots__ = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, name: str | None = None) -> Task:
        """The task of a manifest file; ``name`` chooses when the file holds several.

        Paths in it are relative to the file, and the digest of each folder of sealed files is pinned now. Raises
        ManifestFault, which lists every problem with file, line and column; UsageFault when the file cannot be read
        or the choice is not clear.
        """
        return cls._of(load_task(os.fspath(path), name=name))

    @classmethod
    def load_all(cls, path: str | os.PathLike[str]) -> list[Task]:
        """Every task of a manifest file, in its order; at least one. Raises as ``load`` does."""
        return [cls._of(task) for task in load_tasks(os.fspath(path))]

    @classmethod
    def declare(
        cls,
        name: str,
        *,
        goal: str,
        workspace: str | os.PathLike[str],
        done: Sequence[Any],
        actions: Sequence[str | Mapping[str, Any]],
        invariants: Sequence[Any] = (),
        forbid: Sequence[str] = (),
        observe: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        models: Sequence[str] = (),
        environment: Mapping[str, Any] | None = None,
    ) -> Task:
        """A task in code: what a manifest says, by the same names, read and refused by the same reader.

        ``done`` and ``invariants`` hold what ``criterion`` and ``invariant`` make. An action is a tool's name, or a
        mapping like ``{"tool": "file_edit", "paths": ["src/**"]}``. Relative paths start at the current directory.
        ManifestFault lists every problem.
        """
        rest: dict[str, Any] = {
            "environment": dict(environment or {}),
            "actions": [{"tool": action} if isinstance(action, str) else dict(action) for action in actions],
            "observe": dict(observe or {}),
            "budget": None if budget is None else dict(budget),
            "policy": None if policy is None else dict(policy),
            "models": list(models) or None,
        }
        checks = {"done": done, "invariants": invariants}
        document = document_of(name, goal, os.fspath(workspace), list(forbid), checks, rest)
        data = msgspec.json.encode(document)
        return cls._of(manifests_of(data, file=f"the task {name}", directory=os.getcwd())[0].task)

    @classmethod
    def _of(cls, task: contract.Task) -> Task:
        return cls(**{field.name: getattr(task, field.name) for field in fields(contract.Task)})

    def __eq__(self, other: object) -> bool:
        """Equal parts, whichever of the two classes holds them."""
        if not isinstance(other, contract.Task):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(contract.Task))

    __hash__ = contract.Task.__hash__

"""The contract as a library user meets it: ``Task.load("fix.yaml")``."""

from __future__ import annotations

import os
from dataclasses import fields

from setpoint.app.manifest import load_task, load_tasks
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
    def _of(cls, task: contract.Task) -> Task:
        return cls(**{field.name: getattr(task, field.name) for field in fields(contract.Task)})

    def __eq__(self, other: object) -> bool:
        """Equal parts, whichever of the two classes holds them."""
        if not isinstance(other, contract.Task):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in fields(contract.Task))

    __hash__ = contract.Task.__hash__

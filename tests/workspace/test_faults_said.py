"""What the system refused is told with the path it is about, and only when there is one."""

from __future__ import annotations

import errno

import pytest

from setpoint.adapters.workspaces.objects import world_faults
from setpoint.kernel.errors import WorkspaceFault


@pytest.mark.parametrize(
    ("named", "said"), [((), ""), ((b"a/b\xff",), " ('a/b\\udcff')"), (("a",), " ('a')"), ((7,), "")]
)
def test_a_full_disk_is_told_with_its_path_if_it_has_one(named: tuple[object, ...], said: str) -> None:
    with pytest.raises(WorkspaceFault) as caught, world_faults("Keeping savepoint 1"):
        raise OSError(errno.ENOSPC, "No space left on device", *named)
    assert caught.value.message == f"Keeping savepoint 1 failed: No space left on device{said}"
    assert caught.value.hint is not None and "Free disk space" in caught.value.hint

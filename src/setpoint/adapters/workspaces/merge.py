"""Plan how an attempt becomes part of the staged layer: one case for every pair of what may meet.

The staged layer is in the overlay's own format: a name is absent (the base shows), a whiteout (removed), a file,
or a directory that merges with the base's unless it is marked opaque. It is kept canonical, which makes every later
question cheap: nothing in it equals the base, no whiteout covers nothing, a whole new directory is always opaque.

The plan builds each new object under ``new/<slot>`` and lists the renames; it changes nothing in the layers.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass, field

from setpoint.adapters.workspaces import copying, moves, objects
from setpoint.adapters.workspaces.changeset import ENTRIES_MAX, refuse_locked_root
from setpoint.adapters.workspaces.moves import Dress, Move, MoveSet
from setpoint.adapters.workspaces.objects import Ident, join
from setpoint.kernel.errors import ChangeRejected


@dataclass(slots=True)
class Plan:
    """The renames, and the base objects they stand against (for conflicts below ``.git``)."""

    new_fd: int
    moves: list[Move] = field(default_factory=list[Move])
    dresses: list[Dress] = field(default_factory=list[Dress])
    entries: int = 0
    touched: dict[bytes, Ident | None] = field(default_factory=dict[bytes, "Ident | None"])

    def sealed(self) -> MoveSet:
        return MoveSet(tuple(self.moves), tuple(self.dresses))


def plan(upper_fd: int, staged_fd: int, base_fd: int, new_fd: int) -> Plan:
    """Plan the merge of the attempt's upper directory. Raises ChangeRejected on what no savepoint may carry."""
    result = Plan(new_fd)
    new, old = os.fstat(upper_fd), os.fstat(staged_fd)
    if new.st_mode != old.st_mode:
        refuse_locked_root(new)
    with (
        objects.opened_dir(upper_fd, b".", ours=True) as upper,
        objects.opened_dir(staged_fd, b".", ours=True) as staged,
    ):
        _dress(result, b"", upper, new, staged, old)
        _merge(result, upper, staged, base_fd, b"", 0)
    return result


def _count(result: Plan, path: bytes, depth: int) -> None:
    objects.refuse_depth(path, depth)
    result.entries += 1
    if result.entries > ENTRIES_MAX:
        raise ChangeRejected(
            f"The attempt holds more than {ENTRIES_MAX} entries",
            hint="Keep generated trees (dependencies, build output) out of the workspace.",
        )


def _merge(result: Plan, upper: int, staged: int, base: int | None, path: bytes, depth: int) -> None:
    """Plan for a directory that the staged layer holds. ``base`` is the base's directory if it shows through."""
    for name in objects.names(upper):
        below = join(path, name)
        _count(result, below, depth)
        new = os.stat(name, dir_fd=upper, follow_symlinks=False)
        old = objects.lstat(staged, name)
        under = _visible(base, name)
        if objects.is_whiteout(upper, name, new):
            if under is None:
                _take_away(result, below, old, under)
            elif old is None or not objects.is_whiteout(staged, name, old):
                _put_whiteout(result, below, old, under)
            continue
        objects.refuse_forbidden(below, new)
        if stat.S_ISDIR(new.st_mode):
            _merge_dir(result, upper, staged, base, name, below, depth)
        elif under is not None and base is not None and _equal(upper, name, new, base, under, ours=False):
            _take_away(result, below, old, under)
        elif old is None or not _equal(upper, name, new, staged, old, ours=True):
            slot = b"%d" % len(result.moves)
            copying.copy_leaf(upper, name, result.new_fd, slot, new, ours=True)
            _put(result, below, old, new.st_mode, under)


def _merge_dir(result: Plan, upper: int, staged: int, base: int | None, name: bytes, below: bytes, depth: int) -> None:
    new = os.stat(name, dir_fd=upper, follow_symlinks=False)
    old = objects.lstat(staged, name)
    under = _visible(base, name)
    shown = under if old is None else old
    with ExitStack() as stack:
        source = stack.enter_context(objects.opened_dir(upper, name, ours=True))
        whole = objects.is_opaque(source) or shown is None or not stat.S_ISDIR(shown.st_mode)
        inner_base: int | None = None
        if not whole and base is not None and under is not None and stat.S_ISDIR(under.st_mode):
            inner_base = stack.enter_context(objects.opened_dir(base, name, ours=False))
        if not whole and old is not None:
            inner = stack.enter_context(objects.opened_dir(staged, name, ours=True))
            _dress(result, below, source, new, inner, old)
            if objects.is_opaque(inner):
                inner_base = None
            _merge(result, source, inner, inner_base, below, depth + 1)
            return
        slot = b"%d" % len(result.moves)
        os.mkdir(slot, 0o700, dir_fd=result.new_fd)
        with objects.opened_dir(result.new_fd, slot, ours=True) as target:
            if whole:
                objects.set_opaque(target)
            changed = _build(result, source, inner_base, target, below, depth + 1)
            attributes = objects.user_xattrs(source)
            if not whole and not changed and inner_base is not None and under is not None:
                changed = _dressed_otherwise(new, attributes, under, objects.user_xattrs(inner_base))
            copying.dress_dir(target, new, attributes)
            if os.geteuid() != 0:
                os.fchmod(target, stat.S_IMODE(new.st_mode) | 0o700)  # it will be renamed; the move sets its mode
        if whole or changed:
            _put(result, below, old, new.st_mode, under)
        else:
            objects.remove_tree(result.new_fd, slot)


def _build(result: Plan, upper: int, base: int | None, target: int, path: bytes, depth: int) -> bool:
    """Fill a new staged directory from the attempt's; whether anything in it differs from the base."""
    changed = False
    for name in objects.names(upper):
        below = join(path, name)
        _count(result, below, depth)
        new = os.stat(name, dir_fd=upper, follow_symlinks=False)
        under = _visible(base, name)
        if objects.is_whiteout(upper, name, new):
            if under is not None:
                objects.make_whiteout(target, name)
                _touch(result, below, under)
                changed = True
            continue
        objects.refuse_forbidden(below, new)
        if stat.S_ISDIR(new.st_mode):
            changed |= _build_dir(result, upper, base, target, name, below, depth)
        elif under is None or base is None or not _equal(upper, name, new, base, under, ours=False):
            copying.copy_leaf(upper, name, target, name, new, ours=True)
            _touch(result, below, under)
            changed = True
    return changed


def _build_dir(result: Plan, upper: int, base: int | None, target: int, name: bytes, below: bytes, depth: int) -> bool:
    new = os.stat(name, dir_fd=upper, follow_symlinks=False)
    under = _visible(base, name)
    with ExitStack() as stack:
        source = stack.enter_context(objects.opened_dir(upper, name, ours=True))
        inner_base: int | None = None
        if base is not None and under is not None and stat.S_ISDIR(under.st_mode) and not objects.is_opaque(source):
            inner_base = stack.enter_context(objects.opened_dir(base, name, ours=False))
        os.mkdir(name, 0o700, dir_fd=target)
        inner = stack.enter_context(objects.opened_dir(target, name, ours=True))
        if inner_base is None:
            objects.set_opaque(inner)
            _touch(result, below, under)
        changed = _build(result, source, inner_base, inner, below, depth + 1)
        attributes = objects.user_xattrs(source)
        if inner_base is not None and under is not None and not changed:
            changed = _dressed_otherwise(new, attributes, under, objects.user_xattrs(inner_base))
        copying.dress_dir(inner, new, attributes)
    if inner_base is None or changed:
        return True
    objects.remove_tree(target, name)
    return False


def _visible(base: int | None, name: bytes) -> os.stat_result | None:
    """What the base shows at a name, when it shows through at all."""
    if base is None:
        return None
    st = objects.lstat(base, name)
    return None if st is None or (stat.S_ISCHR(st.st_mode) and st.st_rdev == 0) else st


def _equal(upper: int, name: bytes, new: os.stat_result, other: int, st: os.stat_result, *, ours: bool) -> bool:
    """Same type, mode, content and attributes (of anything but a directory)."""
    if new.st_mode != st.st_mode or stat.S_ISDIR(st.st_mode):
        return False
    if ours and objects.is_whiteout(other, name, st):
        return False
    try:
        return objects.same_content(upper, name, new, other, name, st, ours=(True, ours)) and (
            objects.xattrs_of(upper, name, new, ours=True) == objects.xattrs_of(other, name, st, ours=ours)
        )
    except PermissionError:  # the user's own unreadable file: cannot be known to be equal
        return False


def _dressed_otherwise(
    new: os.stat_result, attributes: dict[str, bytes], old: os.stat_result, old_attributes: dict[str, bytes]
) -> bool:
    return stat.S_IMODE(new.st_mode) != stat.S_IMODE(old.st_mode) or attributes != old_attributes


def _dress(result: Plan, path: bytes, source: int, new: os.stat_result, target: int, old: os.stat_result) -> None:
    attributes, old_attributes = objects.user_xattrs(source), objects.user_xattrs(target)
    if _dressed_otherwise(new, attributes, old, old_attributes) or moves.locks_us_out(old.st_mode):
        packed = moves.pack_attributes(old_attributes), moves.pack_attributes(attributes)
        result.dresses.append(Dress(path, stat.S_IMODE(old.st_mode), stat.S_IMODE(new.st_mode), *packed))


def _touch(result: Plan, path: bytes, under: os.stat_result | None) -> None:
    if path == b".git" or path.startswith(b".git/"):
        result.touched[path] = None if under is None else Ident.of(under)


def _put(result: Plan, path: bytes, old: os.stat_result | None, mode: int, under: os.stat_result | None) -> None:
    slot = len(result.moves)
    made = os.stat(b"%d" % slot, dir_fd=result.new_fd, follow_symlinks=False)
    new = Ident.of(made)._replace(mode=mode)
    result.moves.append(Move(path, slot, None if old is None else Ident.of(old), new))
    _touch(result, path, under)


def _put_whiteout(result: Plan, path: bytes, old: os.stat_result | None, under: os.stat_result) -> None:
    slot = b"%d" % len(result.moves)
    objects.make_whiteout(result.new_fd, slot)
    made = os.stat(slot, dir_fd=result.new_fd, follow_symlinks=False)
    _put(result, path, old, made.st_mode, under)


def _take_away(result: Plan, path: bytes, old: os.stat_result | None, under: os.stat_result | None) -> None:
    if old is not None:
        result.moves.append(Move(path, len(result.moves), Ident.of(old), None))
        _touch(result, path, under)

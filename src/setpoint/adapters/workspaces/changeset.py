"""What one merged view differs from another by, exactly, at a cost that follows the change.

Only names that the upper layers hold are looked at; where an upper layer hides a whole lower directory, that
directory is listed file by file, so no removal is ever summarised away. Identical content is no change.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from setpoint.adapters.workspaces import objects
from setpoint.adapters.workspaces.layers import MergedDir, Node, file_type, read
from setpoint.kernel import keys
from setpoint.kernel.errors import ChangeRejected
from setpoint.ports.workspace import Change, ChangeKind, ChangeSet

ENTRIES_MAX = 200_000  # of one change set: a fresh node_modules fits, an inode bomb does not
TEXT_BYTES_MAX = 256 * 1024  # of one file whose lines are counted
TEXT_BUDGET_BYTES = 16 << 20  # of all files read for line counts in one change set
_LINE_PRODUCT_MAX = 4_000_000  # difflib is quadratic at worst: about a second here


@dataclass(frozen=True, slots=True)
class Difference:
    """One differing path with what the port's Change does not carry."""

    change: Change
    attributes: str  # digest of the user.* attributes after the change


class _Comparison:
    """Two views over the same layers; those from index ``above`` up belong to the new view only."""

    def __init__(self, above: int) -> None:
        self.above = above
        self.found: list[Difference] = []
        self.text_left = TEXT_BUDGET_BYTES

    def walk(self, old: MergedDir | None, new: MergedDir | None, path: bytes, depth: int) -> None:
        objects.refuse_depth(path, depth)
        for name in sorted(self._names(old, new)):
            before = old.lookup(name) if old else None
            after = new.lookup(name) if new else None
            if before is None and after is None:
                continue
            below = objects.join(path, name)
            if after is not None and after.layer >= self.above:
                objects.refuse_forbidden(below, after.st)
            if before and after and before.layer == after.layer and not after.is_dir:
                continue  # the very same object
            self.note(below, name, before, after)
            with ExitStack() as stack:
                inner_old = _opened(stack, old, name, before)
                inner_new = _opened(stack, new, name, after)
                if inner_old or inner_new:
                    self.walk(inner_old, inner_new, below, depth + 1)

    def _names(self, old: MergedDir | None, new: MergedDir | None) -> set[bytes]:
        if new is None:
            return old.names_from(0) if old else set()
        if old is None:
            return new.names_from(0)
        found = new.names_from(self.above)
        return found if new.reaches_below(self.above) else found | old.names_from(0)

    def note(self, path: bytes, name: bytes, before: Node | None, after: Node | None) -> None:
        if len(self.found) >= ENTRIES_MAX:
            raise ChangeRejected(
                f"The change touches more than {ENTRIES_MAX} paths",
                hint="Keep generated trees (dependencies, build output) out of the workspace.",
            )
        if after is None:
            if before is not None:
                self._note_removed(path, name, before)
        elif before is None:
            self._note_present(path, name, "added", None, after)
        else:
            kind = _kind_of(name, before, after)
            if kind is not None:
                self._note_present(path, name, kind, before, after)

    def _note_removed(self, path: bytes, name: bytes, before: Node) -> None:
        size = 0 if before.is_dir else before.st.st_size
        text = self._text(name, before)
        change = Change(
            path=objects.show(path),
            kind="removed",
            file_type=file_type(before.st.st_mode),
            mode=stat.S_IMODE(before.st.st_mode),
            size=size,
            digest="",
            lines_removed=len(text) if text else 0,
        )
        self.found.append(Difference(change, ""))

    def _note_present(self, path: bytes, name: bytes, kind: ChangeKind, before: Node | None, after: Node) -> None:
        attributes = objects.xattrs_of(after.dir_fd, name, after.st, ours=after.ours)
        added, removed = self._lines(name, before, after) if kind != "mode" else (0, 0)
        change = Change(
            path=objects.show(path),
            kind=kind,
            file_type=file_type(after.st.st_mode),
            mode=stat.S_IMODE(after.st.st_mode),
            size=0 if after.is_dir else after.st.st_size,
            digest=objects.hash_object(after.dir_fd, name, after.st, ours=after.ours),
            lines_added=added,
            lines_removed=removed,
        )
        self.found.append(Difference(change, objects.digest_xattrs(attributes)))

    def _lines(self, name: bytes, before: Node | None, after: Node) -> tuple[int, int]:
        new = self._text(name, after)
        if before is None or not stat.S_ISREG(before.st.st_mode):
            return (len(new), 0) if new else (0, 0)
        old = self._text(name, before)
        if old is None or new is None:
            return 0, 0
        return count_lines(old, new)

    def _text(self, name: bytes, node: Node) -> list[bytes] | None:
        """Lines of a small text file, None for everything else or when the budget is spent."""
        size = node.st.st_size
        if not stat.S_ISREG(node.st.st_mode) or size > min(TEXT_BYTES_MAX, self.text_left):
            return None
        self.text_left -= size
        try:
            with objects.opened_file(node.dir_fd, name, ours=node.ours) as fd:
                return split_text(os.pread(fd, size, 0))
        except PermissionError:  # the user's own unreadable file
            return None


def _opened(stack: ExitStack, parent: MergedDir | None, name: bytes, node: Node | None) -> MergedDir | None:
    """The directory below, None when there is none or when it is the user's own and unreadable to us."""
    if parent is None or node is None or not node.is_dir:
        return None
    try:
        return stack.enter_context(parent.open(name))
    except PermissionError:
        return None


def _kind_of(name: bytes, before: Node, after: Node) -> ChangeKind | None:
    if stat.S_IFMT(before.st.st_mode) != stat.S_IFMT(after.st.st_mode):
        return "modified"
    if not after.is_dir and not objects.same_content(
        before.dir_fd, name, before.st, after.dir_fd, name, after.st, ours=(before.ours, after.ours)
    ):
        return "modified"
    if stat.S_ISLNK(after.st.st_mode):
        return None
    if before.st.st_mode != after.st.st_mode:
        return "mode"
    old = objects.xattrs_of(before.dir_fd, name, before.st, ours=before.ours)
    return "mode" if old != objects.xattrs_of(after.dir_fd, name, after.st, ours=after.ours) else None


def split_text(data: bytes) -> list[bytes] | None:
    """Lines with their ends, None for binary content."""
    if b"\0" in data:
        return None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return data.splitlines(keepends=True)


def count_lines(old: list[bytes], new: list[bytes]) -> tuple[int, int]:
    """(added, removed) lines; (0, 0) when the differing middle is too large to compare."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if len(left) * len(right) > _LINE_PRODUCT_MAX:
        return 0, 0
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return len(right) - same, len(left) - same


def compare(old: MergedDir, new: MergedDir, above: int) -> list[Difference]:
    """Every difference in path order. ``above``: index of the first layer that only ``new`` has.

    Raises ChangeRejected for setuid files, special files, depth and number beyond the limits.
    """
    comparison = _Comparison(above)
    _note_root(comparison, old, new)
    comparison.walk(old, new, b"", 0)
    found = _with_renames(comparison.found, old)
    return sorted(found, key=lambda item: os.fsencode(item.change.path))


def _note_root(comparison: _Comparison, old: MergedDir, new: MergedDir) -> None:
    """The root directory itself: its mode and attributes. ChangeRejected when the change locks its owner out."""
    before, after = old.node(), new.node()
    kind = _kind_of(b".", before, after)
    if kind is not None:
        refuse_locked_root(after.st)
        comparison.note(b"", b".", before, after)


def refuse_locked_root(st: os.stat_result) -> None:
    if st.st_mode & 0o700 != 0o700:
        raise ChangeRejected(
            f"The workspace itself got mode {stat.S_IMODE(st.st_mode):04o}, which locks its owner out",
            hint="Leave the workspace directory readable, writable and searchable for its owner.",
        )


def _with_renames(found: list[Difference], old: MergedDir) -> list[Difference]:
    """Mark an added file whose content equals a removed file's as renamed; the removal stays listed.

    It stays because an invariant over removals must see it whatever the content became.
    """
    added = {item.change.digest: item for item in found if _may_be_rename(item.change)}
    sizes = {item.change.size for item in added.values()}
    origins: dict[str, str] = {}
    for item in found:
        change = item.change
        if change.kind == "removed" and change.file_type == "file" and change.size in sizes:
            digest = _digest_at(old, os.fsencode(change.path))
            origins.setdefault(digest, change.path)
    return [
        replace(item, change=replace(item.change, kind="renamed", renamed_from=origins[item.change.digest]))
        if _may_be_rename(item.change) and item.change.digest in origins
        else item
        for item in found
    ]


def _may_be_rename(change: Change) -> bool:
    return change.kind == "added" and change.file_type == "file" and change.size > 0


def _digest_at(root: MergedDir, path: bytes) -> str:
    parent, name = objects.split(path)
    with ExitStack() as stack:
        here = root
        for part in parent.split(b"/") if parent else []:
            here = stack.enter_context(here.open(part))
        node = here.lookup(name)
        if node is None or not stat.S_ISREG(node.st.st_mode):
            return ""
        try:
            return objects.hash_object(node.dir_fd, name, node.st, ours=node.ours)
        except PermissionError:  # the user's own unreadable file has no known content
            return ""


def seal(found: list[Difference]) -> ChangeSet:
    """The port's ChangeSet; equal fingerprints mean byte-identical states over the same base."""
    lines = [[c.path, c.kind, c.file_type, c.mode, c.digest, item.attributes] for item in found for c in (item.change,)]
    return ChangeSet(tuple(item.change for item in found), keys.digest(lines))


# A diff for people.


def unified(old: MergedDir, new: MergedDir, found: list[Difference], max_bytes: int) -> str:
    """Unified diff of ``found``; binary and large files are named only. At most ``max_bytes`` of UTF-8."""
    budget = max_bytes
    parts: list[str] = []
    for item in found:
        for line in _diff_of(old, new, item.change):
            size = len(line.encode("utf-8", "surrogateescape"))
            if size > budget:
                parts.append("... diff cut here\n")
                return "".join(parts)
            budget -= size
            parts.append(line)
    return "".join(parts)


def _diff_of(old: MergedDir, new: MergedDir, change: Change) -> Iterator[str]:
    if change.kind == "mode" or change.file_type != "file":
        yield f"# {change.kind} {change.file_type} {_one_line(change.path)} mode {change.mode:04o}\n"
        return
    path = os.fsencode(change.path)
    before = _content_at(old, path) if change.kind != "added" else []
    after = _content_at(new, path) if change.kind != "removed" else []
    if change.kind == "renamed":
        before = []
        yield f"# renamed from {_one_line(change.renamed_from)}\n"
    if before is None or after is None or len(before) * len(after) > _LINE_PRODUCT_MAX:
        yield f"# {change.kind} binary or large file {_one_line(change.path)} ({change.size} bytes)\n"
        return
    source = "/dev/null" if change.kind in ("added", "renamed") else f"a/{_one_line(change.path)}"
    target = "/dev/null" if change.kind == "removed" else f"b/{_one_line(change.path)}"
    if not before and not after:
        yield f"# {change.kind} empty file {_one_line(change.path)}\n"
    for line in difflib.unified_diff(before, after, source, target):
        yield line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"


def _one_line(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _content_at(root: MergedDir, path: bytes) -> list[str] | None:
    """Lines of a small text file, [] when there is no regular file, None for binary or large content."""
    data = read(root, path, TEXT_BYTES_MAX + 1)
    if data is None:
        return []
    lines = split_text(data) if len(data) <= TEXT_BYTES_MAX else None
    return None if lines is None else [line.decode("utf-8") for line in lines]

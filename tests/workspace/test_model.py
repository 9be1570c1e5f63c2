"""Random mutations against a plain copy: whatever happens, the transaction and the copy are the same tree."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from setpoint.adapters.workspaces.copy import CopyWorkspaceProvider
from setpoint.adapters.workspaces.overlay import OverlayWorkspaceProvider
from setpoint.kernel.errors import ConflictFault
from setpoint.ports.sandbox import BindView
from setpoint.ports.workspace import Workspace, WorkspaceProvider

from .conftest import DISK
from .harness import PlainSandbox, act, picture, seen, unlock, works

# Runs twice: inside the sandbox on the view, and outside on the model.
APPLY = r"""
import os, shutil, stat
os.umask(0o022)
def here(p):
    try: return os.lstat(p)
    except (FileNotFoundError, NotADirectoryError): return None
def clear(p):
    s = here(p)
    if s is None: return
    shutil.rmtree(p) if stat.S_ISDIR(s.st_mode) else os.unlink(p)
def parents(p):
    parts = p.split(b"/")[:-1]
    for i in range(1, len(parts) + 1):
        d = b"/".join(parts[:i]); s = here(d)
        if s is not None and not stat.S_ISDIR(s.st_mode): os.unlink(d); s = None
        if s is None: os.mkdir(d)
def inside(p):
    return all(not os.path.islink(b"/".join(p.split(b"/")[:i])) for i in range(1, p.count(b"/") + 1))
def apply(op, p, x):
    if op == "write": parents(p); clear(p); open(p, "wb").write(x)
    elif op == "large": parents(p); clear(p); open(p, "wb").write(x * 300_000)
    elif op == "append" and inside(p) and here(p) and stat.S_ISREG(here(p).st_mode): open(p, "ab").write(x)
    elif op == "remove" and inside(p): clear(p)
    elif op == "mkdir": parents(p); here(p) or os.mkdir(p)
    elif op == "symlink": parents(p); clear(p); os.symlink(x, p)
    elif op == "chmod" and inside(p) and here(p) and not os.path.islink(p): os.chmod(p, x | 0o700 * os.path.isdir(p))
    elif op == "xattr" and inside(p) and here(p) and not os.path.islink(p): os.setxattr(p, "user.note", x)
    elif op == "rename" and inside(p) and here(p) and not (x + b"/").startswith(p) and not p.startswith(x):
        parents(x); clear(x); shutil.move(os.fsdecode(p), os.fsdecode(x)) if here(p) else None
    elif op == "recreate" and inside(p): clear(p); parents(p); os.mkdir(p); open(p + b"/new", "wb").write(x)
"""

NAMES = [
    b"f",
    b"g",
    b"a",
    b"a/f",
    b"a/b",
    b"a/b/h",
    b"odd\xff\n",
    b"a/\xfe",
    b"nest/.git/HEAD",
    b"d/e/k",
    b".git/x",
]
TREE = [
    ("write", b"f", b"1\n"),
    ("write", b"a/f", b"2\n"),
    ("write", b"a/b/h", b"3\n"),
    ("write", b"odd\xff\n", b"4"),
    ("write", b"nest/.git/HEAD", b"ref\n"),
    ("mkdir", b"empty", b""),
    ("symlink", b"l", b"a/f"),
    ("write", b".git/x", b"x"),
]
paths = st.sampled_from(NAMES)
contents = st.sampled_from([b"", b"1\n", b"2\n", b"three\n" * 3, b"\0binary" * 50])
operations = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "recreate", "xattr", "large"]), paths, contents),
    st.tuples(st.sampled_from(["remove", "mkdir"]), paths, st.just(b"")),
    st.tuples(st.just("symlink"), paths, st.sampled_from([b"f", b"../f", b"a", b"/nowhere", b"."])),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o644, 0o600, 0o755, 0o700, 0o1777])),
    st.tuples(st.just("rename"), paths, paths),
)


def script_of(batch: list[tuple[str, bytes, object]]) -> str:
    xattrs = [(op, p, x[:10] if op in ("xattr", "large") and isinstance(x, bytes) else x) for op, p, x in batch]
    return APPLY + f"\nfor o in {xattrs!r}: apply(*o)\n"


class TransactionMachine(RuleBasedStateMachine):
    kind = "overlay"

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="workspace-model-"))
        self.root, self.model = self.top / "ws", self.top / "model"
        self.root.mkdir()
        self.model.mkdir()
        self.copies = 0
        self.transactions = 0

    def provider(self) -> WorkspaceProvider:
        if self.kind == "copy":
            return CopyWorkspaceProvider(self.top / "state")
        return OverlayWorkspaceProvider(self.top / "state", PlainSandbox(self.top / "scratch"))

    def teardown(self) -> None:
        self.workspace.close(keep_staged=False)
        unlock(self.top)
        shutil.rmtree(self.top)

    # The model.

    def on_model(self, batch: list[tuple[str, bytes, object]]) -> None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.chdir(self.model)
                exec(script_of(batch), {})  # noqa: S102 - our own text, bounded to relative paths
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0

    def copied(self) -> Path:
        self.copies += 1
        target = self.top / f"copy{self.copies}"
        shutil.copytree(self.model, target, symlinks=True)
        return target

    def back_to(self, copy: Path) -> None:
        shutil.rmtree(self.model)
        shutil.copytree(copy, self.model, symlinks=True)

    # Rules.

    @initialize()
    def start(self) -> None:
        self.on_model(TREE)
        shutil.copytree(self.model, self.root, symlinks=True, dirs_exist_ok=True)
        self.new_transaction()

    def new_transaction(self) -> None:
        self.transactions += 1
        self.workspace: Workspace = self.provider().open(str(self.root), f"t{self.transactions}", DISK)
        self.kept = {0: self.copied()}
        self.floor = 0
        self.workspace.begin()

    @rule(batch=st.lists(operations, min_size=1, max_size=4))
    def command(self, batch: list[tuple[str, bytes, object]]) -> None:
        act(self.workspace.action_view(), script_of(batch), python=True)
        self.on_model(batch)

    @rule(path=st.sampled_from(["f", "a/f", "a/new/deep", "d/e/k"]), content=contents)
    def file_tool(self, path: str, content: bytes) -> None:
        target = self.model / path
        links = any((self.model / parent).is_symlink() for parent in [path, *map(str, Path(path).parents)])
        blocked = target.is_dir() or any((self.model / parent).is_file() for parent in Path(path).parents)
        if links or blocked:
            return
        resolved = self.workspace.resolve(path)
        assert resolved == path
        self.workspace.write(resolved, content)
        assert self.workspace.read(resolved, 1 << 20) == content
        if target.exists():
            target.write_bytes(content)
        else:
            self.on_model([("write", os.fsencode(path), content)])

    @rule()
    def keep(self) -> None:
        number = self.workspace.savepoint() + 1
        changed = self.workspace.changes()
        self.workspace.keep(number)
        assert self.workspace.savepoint() == number and self.workspace.changes() == changed
        self.kept[number] = self.copied()
        self.workspace.begin()

    @rule()
    def discard(self) -> None:
        self.workspace.discard()
        self.back_to(self.kept[self.workspace.savepoint()])
        self.workspace.begin()

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        choices = [n for n in self.kept if self.floor <= n <= self.workspace.savepoint()]
        number = data.draw(st.sampled_from(choices))
        self.workspace.restore(number)
        self.kept = {n: copy for n, copy in self.kept.items() if n <= number}
        self.back_to(self.kept[number])
        self.workspace.begin()

    @rule()
    def reopen(self) -> None:
        self.workspace.close(keep_staged=True)
        self.workspace = self.provider().open(str(self.root), f"t{self.transactions}", DISK)
        self.workspace.begin()
        self.back_to(self.kept[self.workspace.savepoint()])

    @rule(then_undo=st.booleans())
    def commit(self, then_undo: bool) -> None:
        self.workspace.discard()
        self.back_to(self.kept[self.workspace.savepoint()])
        before = picture(self.root)
        digest = self.workspace.state_digest()
        self.copies += 1
        commit_id = f"c{self.copies}"
        self.workspace.commit(commit_id)
        assert picture(self.root) == picture(self.model)
        assert self.workspace.state_digest() == digest and self.workspace.changes().changes == ()
        self.floor = self.workspace.savepoint()
        if then_undo:
            self.workspace.close(keep_staged=False)
            self.provider().undo(str(self.root), commit_id)
            assert picture(self.root) == before
            shutil.rmtree(self.model)
            shutil.copytree(self.root, self.model, symlinks=True)
            self.new_transaction()
            return
        self.workspace.begin()

    @precondition(lambda self: hasattr(self, "workspace"))
    @rule()
    def concurrent_edit(self) -> None:
        self.workspace.discard()
        self.back_to(self.kept[self.workspace.savepoint()])
        files = [
            self.root / change.path
            for change in self.workspace.changes().changes
            if (self.root / change.path).is_file()
            and not (self.root / change.path).is_symlink()
            and not change.path.startswith(".git/")  # only its identity is known, so writing it back is a conflict
        ]
        if files:
            content = files[0].read_bytes()
            files[0].write_bytes(content + b"the user's\n")
            now = picture(self.root)
            with pytest.raises(ConflictFault):
                self.workspace.commit("conflict")
            assert picture(self.root) == now
            files[0].write_bytes(content)
        self.workspace.begin()

    @invariant()
    def same_tree(self) -> None:
        if not hasattr(self, "workspace"):
            return
        view = self.workspace.candidate_view()
        if isinstance(view, BindView):
            self.workspace.changes()
            assert picture(view.root) == picture(self.model)
        else:
            assert seen(view) == picture(self.model)


class CopyMachine(TransactionMachine):
    kind = "copy"


GENERATE = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking real sandbox runs takes many minutes
QUICK = settings(
    max_examples=8,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=GENERATE,
)
LONG = settings(QUICK, max_examples=150, stateful_step_count=40)

if works():
    TestOverlayModel = TransactionMachine.TestCase
    TestOverlayModel.settings = QUICK
    TestCopyModel = CopyMachine.TestCase
    TestCopyModel.settings = QUICK

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    class TestOverlayModelLong(TransactionMachine.TestCase):
        settings = LONG

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    class TestCopyModelLong(CopyMachine.TestCase):
        settings = LONG

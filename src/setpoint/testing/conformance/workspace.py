"""The promises of ``setpoint.ports.workspace``: the user's directory as a transaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from setpoint.kernel.errors import ChangeRejected, ConflictFault, UsageFault, WorkspaceFault
from setpoint.ports.workspace import Workspace, WorkspaceProvider
from setpoint.testing.conformance.views import act, make, picture, seen, unlock, works

DISK_BYTES = 1 << 28

TREE = r"""
mkdir -p a/b/c d1 d2/x ro nest/.git/objects .git; echo 1 >a/f1; echo 2 >a/b/f2; echo 3 >a/b/c/f3; echo x>d1/one
echo y>d1/two; echo z>d2/x/deep; ln -s /etc/passwd esc; ln -s a/f1 lnk; ln -s ../../../../etc out; ln -s a dirlink
echo hl>h1; ln h1 h2; echo perm>pm; chmod 640 pm; echo big>File.txt; echo nest>nest/.git/HEAD; echo g>nest/src
printf bad > $'bad\xff\xfename'; echo ro>ro/r; chmod 555 ro; touch -d 2020-01-01 old; mkdir empty; echo ref>.git/HEAD
python3 -c "import os; os.setxattr('pm','user.foo',b'bar')"
"""

AWKWARD = r"""
import os, shutil
open('a/f1','a').write('more')
os.unlink('a/b/f2')
shutil.rmtree('d1'); os.mkdir('d1'); open('d1/new','w').write('n')
os.rename('old','older')
os.mkdir('fresh'); open('fresh/q','w').write('q'); os.rename('fresh','fresh2')
open('lnk','a').write('via')
open('h1','a').write('HL')
os.link('pm','pm2')
os.chmod('pm',0o755); os.setxattr('pm','user.foo',b'baz')
os.utime('a/b/c/f3')
open('file.TXT','w').write('case')
os.chmod('ro',0o755); open('ro/n','w').write('x'); os.chmod('ro',0o555)
open(b'bad\xff\xfename','ab').write(b'!'); open(b'new\x80\n\tname','wb').write(b'nl')
os.unlink('File.txt'); os.mkdir('File.txt'); open('File.txt/in','w').write('i')
shutil.rmtree('a/b/c'); os.symlink('/etc','a/b/c')
os.unlink('dirlink'); os.mkdir('dirlink'); open('dirlink/z','w').write('z')
open('nest/.git/config','w').write('[core]')
os.truncate(os.open('sparse',os.O_CREAT|os.O_RDWR),3<<20)
os.mkdir('locked'); open('locked/in','w').write('i'); os.chmod('locked/in',0o400); os.chmod('locked',0o500)
os.rmdir('empty'); os.makedirs('hollow/hollower')
open('.git/HEAD','w').write('other')
"""


@dataclass
class WorkspaceBench:
    """A user's directory, the provider under test, and every workspace a test has opened."""

    root: Path
    provider: WorkspaceProvider
    opened: list[Workspace] = field(default_factory=list[Workspace])

    def open(self, transaction_id: str = "t1") -> Workspace:
        workspace = self.provider.open(str(self.root), transaction_id, DISK_BYTES)
        self.opened.append(workspace)
        return workspace

    def fill(self, script: str) -> None:
        """Do something in the user's directory, as the user."""
        make(self.root, script)

    def close(self) -> None:
        for workspace in self.opened:
            workspace.close(keep_staged=False)


def change_script(bench: WorkspaceBench, script: str = AWKWARD) -> None:
    act(bench.opened[-1].action_view(), script, python=True)


class WorkspaceSuite:
    """Every workspace on a disk keeps these. Override ``provider``.

        class TestMyWorkspaces(WorkspaceSuite):
            @pytest.fixture
            def provider(self, tmp_path):
                return MyProvider(tmp_path / "state")

    Its views are acted in by bubblewrap, as a sandbox would; where that makes no overlays the suite is skipped. What no
    test in one process can show stays with the author: that a crash during ``commit`` or ``undo`` leaves exactly the
    old tree or the new one, that what ``keep`` acknowledged survives a power cut, and that costs depend on the change.
    """

    @pytest.fixture
    def provider(self) -> WorkspaceProvider:
        """The provider. The user's directory is ``tmp_path / "ws"``: keep state anywhere else."""
        raise NotImplementedError("Override the fixture provider: it returns your WorkspaceProvider.")

    @pytest.fixture
    def bench(self, provider: WorkspaceProvider, tmp_path: Path) -> Iterator[WorkspaceBench]:
        if not works():
            pytest.skip("bwrap cannot mount overlays here")
        (tmp_path / "ws").mkdir()
        made = WorkspaceBench(tmp_path / "ws", provider)
        yield made
        made.close()
        unlock(tmp_path)

    def test_an_awkward_change_is_kept_committed_and_undone_exactly(self, bench: WorkspaceBench) -> None:
        """R013 R189"""
        bench.fill(TREE)
        before = picture(bench.root)
        workspace = bench.open()
        workspace.begin()
        change_script(bench)
        candidate = workspace.state_digest()
        workspace.keep(1)
        assert picture(bench.root) == before
        assert workspace.state_digest() == candidate
        receipt = workspace.commit("c1")
        after = picture(bench.root)
        assert after != before and after[b"d1/new"][1] and b"d1/one" not in after and b"empty" not in after
        assert after[b"a/b/c"][1] == b"/etc" and after[b"old" + b"er"][1] == before[b"old"][1]
        assert not any(name.startswith("user.overlay") for _, _, x in after.values() for name, _ in x)
        assert workspace.commit("c1") == receipt
        assert workspace.changes().changes == ()
        assert workspace.state_digest() == candidate == bench.open("t2").base_digest
        assert bench.provider.undo(str(bench.root), "c1").commit_id == "c1"
        assert picture(bench.root) == before
        with pytest.raises(UsageFault):
            workspace.commit("c1")

    def test_the_candidate_view_shows_what_a_commit_would_make(self, bench: WorkspaceBench) -> None:
        """R201"""
        bench.fill(TREE)
        workspace = bench.open()
        workspace.begin()
        change_script(bench, AWKWARD.replace("os.chmod('locked/in',0o400); os.chmod('locked',0o500)", "pass"))
        shown = seen(workspace.candidate_view())
        act(workspace.candidate_view(), "touch thrown_away; rm -rf a; true", check=False)
        assert seen(workspace.candidate_view()) == shown
        workspace.keep(1)
        assert seen(workspace.candidate_view()) == shown
        assert seen(workspace.base_view()) == picture(bench.root)
        workspace.commit("c1")
        assert picture(bench.root) == shown

    def test_discard_and_restore_bring_back_the_exact_staged_state(self, bench: WorkspaceBench) -> None:
        """After ``discard`` or ``restore`` the staged state is byte-identical to what it was. R013 R201"""
        bench.fill(TREE)
        workspace = bench.open()
        states = [workspace.state_digest()]
        prints = [workspace.changes().fingerprint]
        second = """
import os, shutil
shutil.rmtree('d1'); os.chmod('locked',0o700); os.chmod('locked/in',0o600); open('locked/in','w').write('2')
os.unlink('a/b/c'); os.makedirs('a/b/c'); open('a/b/c/f4','w').write('4'); open('older','w').write('second')
os.unlink('pm2'); os.chmod('.',0o711)
"""
        third = """
import os, shutil
os.mkdir('d1'); open('d1/one','w').write('x\\n'); shutil.rmtree('a'); open('a','w').write('file'); os.unlink('h1')
"""
        for number, script in enumerate((AWKWARD, second, third), 1):
            workspace.begin()
            change_script(bench, script)
            workspace.keep(number)
            assert workspace.savepoint() == number
            states.append(workspace.state_digest())
            prints.append(workspace.changes().fingerprint)
            workspace.begin()
            change_script(bench, "import shutil,os; shutil.rmtree('nest'); open('x','w'); os.chmod('ro',0o777)")
            assert workspace.state_digest() != states[-1]
            workspace.discard()
            assert workspace.state_digest() == states[-1] and workspace.changes().fingerprint == prints[-1]
        assert len(set(prints)) == 4
        for number in (2, 1, 0):
            workspace.restore(number)
            assert (workspace.savepoint(), workspace.state_digest()) == (number, states[number])
            assert workspace.changes().fingerprint == prints[number]
        assert workspace.changes().changes == ()

    def test_after_a_restore_actions_see_the_old_savepoint(self, bench: WorkspaceBench) -> None:
        bench.fill("mkdir -p a/b; echo 1 >a/f; echo 2 >a/b/g; chmod 700 a/b; echo 3 >h")
        workspace = bench.open()
        shown = [seen(workspace.candidate_view())]
        turns = (
            "echo 11 >a/f; chmod 755 a/b",
            "rm -r a/b; mkdir a/b; echo n >a/b/n",
            "rm a/f; mkdir a/f; rm h; echo x >a/f/h",
        )
        for number, script in enumerate(turns, 1):
            workspace.begin()
            act(workspace.action_view(), script)
            workspace.keep(number)
            shown.append(seen(workspace.candidate_view()))
        for number in (2, 1, 0):
            workspace.restore(number)
            workspace.begin()
            assert seen(workspace.action_view()) == shown[number]
            with pytest.raises(WorkspaceFault):
                workspace.restore(7)
            assert seen(workspace.candidate_view()) == shown[number]

    def test_changes_are_exact_and_name_every_removed_file(self, bench: WorkspaceBench) -> None:
        bench.fill(
            "mkdir -p d/e keep; echo 1 >d/a; echo 2 >d/e/b; printf 'one\\ntwo\\nthree\\n'>t; "
            "echo same>keep/s; echo moved>m; chmod 644 m"
        )
        workspace = bench.open()
        workspace.begin()
        act(
            workspace.action_view(),
            "rm -r d; sed -i s/two/2/ t; echo four>>t; touch keep/s; mv m n; chmod 600 keep/s; mkdir z",
        )
        found = {c.path: (c.kind, c.lines_added, c.lines_removed) for c in workspace.attempt_changes().changes}
        assert found == {
            "d": ("removed", 0, 0),
            "d/a": ("removed", 0, 1),
            "d/e": ("removed", 0, 0),
            "d/e/b": ("removed", 0, 1),
            "keep/s": ("mode", 0, 0),
            "m": ("removed", 0, 1),
            "n": ("renamed", 1, 0),
            "t": ("modified", 2, 1),
            "z": ("added", 0, 0),
        }
        assert workspace.changes() == workspace.attempt_changes()
        workspace.keep(1)
        workspace.begin()
        act(workspace.action_view(), "mkdir -p d/e; echo 1 >d/a; echo 2 >d/e/b; chmod 644 keep/s")
        assert {c.path for c in workspace.attempt_changes().changes} == {"d", "d/a", "d/e", "d/e/b", "keep/s"}
        assert {c.path for c in workspace.changes().changes} == {"m", "n", "t", "z"}
        assert "+four" in workspace.diff(10_000) and "diff cut" in workspace.diff(60)

    def test_a_touch_of_a_file_is_no_change(self, bench: WorkspaceBench) -> None:
        bench.fill("echo 1 > f")
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "touch f; echo 1 > f")
        assert workspace.attempt_changes().changes == ()
        workspace.keep(1)
        assert workspace.commit("c").paths == ()

    @pytest.mark.parametrize(
        "script",
        [
            "import os; os.mkfifo('p')",
            "import socket; s=socket.socket(socket.AF_UNIX); s.bind('s')",
            "import os; open('su','w'); os.chmod('su',0o4755)",
            "import os; os.mkdir('nd'); os.mkfifo('nd/p')",
            "import os; os.chmod('f',0)",
            "import os; os.mkdir('nd'); os.chmod('nd',0o200)",
            "import os; os.mkdir('nd'); open('nd/x','w'); os.chmod('nd/x',0o200); os.chmod('nd',0o500)",
            "import os\nfor i in range(200): os.mkdir('d'); os.chdir('d')",
        ],
    )
    def test_special_files_and_depth_never_reach_a_savepoint(self, bench: WorkspaceBench, script: str) -> None:
        bench.fill("echo 1 > f")
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), script, python=True)
        with pytest.raises(ChangeRejected):
            workspace.attempt_changes()
        with pytest.raises(ChangeRejected):
            workspace.keep(1)
        assert workspace.savepoint() == 0
        workspace.discard()
        assert workspace.changes().changes == ()

    def test_a_workspace_that_its_owner_may_not_write_keeps_its_mode(self, bench: WorkspaceBench) -> None:
        """R013"""
        bench.fill("mkdir d; echo 1 >d/f; chmod 555 .")
        before = picture(bench.root)
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "echo no > new; echo 2 > d/f", check=False)
        assert [change.path for change in workspace.attempt_changes().changes if change.path == "."] == []
        workspace.keep(1)
        workspace.begin()
        act(workspace.action_view(), "rm -r d", check=False)
        workspace.discard()
        workspace.begin()
        act(workspace.action_view(), "echo 3 > d/f")
        workspace.keep(2)
        workspace.commit("c1")
        assert (bench.root / "d/f").read_text() == "3\n"
        assert bench.root.stat().st_mode & 0o777 == 0o555
        bench.provider.undo(str(bench.root), "c1")
        assert picture(bench.root) == before

    def test_a_path_the_user_touched_is_a_conflict_and_both_versions_stay(self, bench: WorkspaceBench) -> None:
        """``ConflictFault`` names it, nothing is overwritten, the staged version stays available. R025"""
        bench.fill("mkdir d; echo 1 >f; echo 2 >g; echo 3 >d/h")
        for number, (action, edit, path) in enumerate(
            [
                ("echo mine>f", "echo yours>f", "f"),
                ("rm f", "echo yours2>f", "f"),
                ("echo mine>n", "echo yours>n", "n"),
                ("rm -r d", "echo yours>d/h", "d/h"),
                ("rm -r d", "echo yours>d/new", "d/new"),
                ("echo mine>g", "rm g", "g"),
                ("echo mine>d/h", "rm -r d; echo file>d", "d"),
                ("chmod 600 f", "chmod 666 f", "f"),
            ]
        ):
            bench.fill("rm -rf d n; mkdir d; echo 1 >f; echo 2 >g; echo 3 >d/h; chmod 644 f")
            workspace = bench.open(f"c{number}")
            workspace.begin()
            act(workspace.action_view(), action)
            workspace.keep(1)
            bench.fill(edit)
            now = picture(bench.root)
            with pytest.raises(ConflictFault) as caught:
                workspace.commit(f"c{number}")
            assert caught.value.paths == (path,)
            assert picture(bench.root) == now
            assert workspace.changes().changes

    def test_disjoint_edits_merge_and_the_second_of_two_commits_to_one_file_conflicts(
        self, bench: WorkspaceBench
    ) -> None:
        """R025"""
        bench.fill("for x in a b c; do echo 1 > $x; done")
        one, two, three = bench.open("one"), bench.open("two"), bench.open("three")
        for workspace, script in ((one, "echo A1>a"), (two, "echo A2>a"), (three, "echo B3>b; rm c")):
            workspace.begin()
            act(workspace.action_view(), script)
            workspace.keep(1)
        one.commit("one")
        with pytest.raises(ConflictFault):
            two.commit("two")
        three.commit("three")
        assert sorted(os.listdir(bench.root)) == ["a", "b"]
        assert (bench.root / "a").read_text() == "A1\n" and (bench.root / "b").read_text() == "B3\n"

    def test_undo_refuses_when_the_user_changed_a_committed_path_and_keeps_disjoint_edits(
        self, bench: WorkspaceBench
    ) -> None:
        bench.fill("echo 1 >f; echo 2 >g; mkdir d; echo 3 >d/h")
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "echo new>f; rm -r d; mkdir e; echo n>e/n")
        workspace.keep(1)
        workspace.commit("c1")
        bench.fill("echo mine>e/mine")
        with pytest.raises(ConflictFault) as caught:
            bench.provider.undo(str(bench.root), "c1")
        assert caught.value.paths == ("e",)
        bench.fill("rm e/mine; echo kept>other; cp f f2; mv f2 f")
        bench.provider.undo(str(bench.root), "c1")
        assert (bench.root / "f").read_text() == "1\n" and (bench.root / "d/h").read_text() == "3\n"
        assert (bench.root / "other").exists() and not (bench.root / "e").exists()
        assert bench.provider.undo(str(bench.root), "c1").paths
        with pytest.raises(UsageFault):
            bench.provider.undo(str(bench.root), "unknown")

    def test_a_transaction_goes_on_after_a_commit(self, bench: WorkspaceBench) -> None:
        bench.fill("echo 1 >f; mkdir d; echo 2 >d/g; mkdir .git; echo r>.git/HEAD")
        workspace = bench.open()
        base = workspace.base_digest
        for number in (1, 2, 3):
            workspace.begin()
            act(
                workspace.action_view(),
                f"echo {number}{number} >f; rm -rf d; mkdir d; echo {number} >d/n{number}; echo {number} >.git/HEAD",
            )
            workspace.keep(number)
            workspace.commit(f"c{number}")
            assert (bench.root / "d" / f"n{number}").exists() and not workspace.changes().changes
        with pytest.raises(WorkspaceFault):
            workspace.restore(1)
        for number in (3, 2, 1):
            bench.provider.undo(str(bench.root), f"c{number}")
        assert bench.open("again").base_digest == base

    def test_a_closed_transaction_is_reopened_at_its_savepoint(self, bench: WorkspaceBench) -> None:
        """R131"""
        bench.fill(TREE)
        workspace = bench.open()
        workspace.begin()
        change_script(bench)
        workspace.keep(1)
        digest, base, found = workspace.state_digest(), workspace.base_digest, workspace.changes()
        workspace.begin()
        act(workspace.action_view(), "echo lost > lost")
        workspace.close(keep_staged=True)
        bench.fill("echo later > unrelated")
        again = bench.open()
        assert (again.savepoint(), again.state_digest(), again.base_digest) == (1, digest, base)
        assert again.changes() == found
        again.close(keep_staged=False)
        fresh = bench.open()
        assert fresh.savepoint() == 0 and fresh.base_digest != base

    @pytest.mark.parametrize(
        ("path", "leads"),
        [
            ("f", "f"),
            ("./d//g", "d/g"),
            ("d/../f", "f"),
            ("/workspace/f", "f"),
            ("/workspace", "."),
            (".", "."),
            ("link", "f"),
            ("dlink/g", "d/g"),
            ("dlink/../f", "f"),
            ("abs", "d/g"),
            ("new/deeper/file", "new/deeper/file"),
            ("new/../f", "f"),
            ("dangling", "nowhere/x"),
            ("", None),
            ("..", None),
            ("../ws/f", None),
            ("d/../../etc/shadow", None),
            ("../../etc/shadow", None),
            ("/etc/shadow", None),
            ("/workspace/../etc/shadow", None),
            ("/workspace-evil/f", None),
            ("/proc/self/root/etc/shadow", None),
            ("escape", None),
            ("escape/passwd", None),
            ("up/passwd", None),
            ("loop", None),
            ("chain", None),
            ("a\0b", None),
            ("x/" * 3000, None),
            ("\ud800", None),
            ("dlink/../../x", None),
            ("staged_escape/passwd", None),
            ("attempt_escape/passwd", None),
            ("swapped/g", None),
        ],
    )
    def test_a_path_resolves_where_it_leads_or_not_at_all(
        self, bench: WorkspaceBench, path: str, leads: str | None
    ) -> None:
        """No symlink or ``..`` ever leads out of the workspace. R071"""
        bench.fill(
            "mkdir d swapped; echo 1 >f; echo 2 >d/g; echo 3 >swapped/g; ln -s f link; ln -s d dlink; "
            "ln -s /workspace/d/g abs; ln -s nowhere/x dangling; ln -s /etc escape; ln -s ../../../../etc up; "
            "ln -s loop loop; ln -s dlink/../escape chain"
        )
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "ln -s /etc staged_escape; rm -r swapped; ln -s ../../etc swapped")
        workspace.keep(1)
        workspace.begin()
        act(workspace.action_view(), "ln -s ../../etc attempt_escape")
        assert workspace.resolve(path) == leads

    def test_files_are_read_and_written_in_the_attempt_only(self, bench: WorkspaceBench) -> None:
        """R071"""
        bench.fill("mkdir -p d/sub gone; echo 1 >f; chmod 750 f; echo 2 >d/g; echo 3 >gone/x; ln -s d dl; chmod 700 d")
        before = picture(bench.root)
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "rm -r gone; rm d/g")

        def put(path: str, content: bytes) -> None:
            resolved = workspace.resolve(path)
            assert resolved is not None
            workspace.write(resolved, content)
            assert workspace.read(resolved, 1 << 20) == content

        for path, content in (
            ("f", b"new"),
            ("dl/g", b"again"),
            ("gone/y", b"y"),
            ("p/q/r", b"r"),
            ("p/q/r", b"rr"),
        ):
            put(path, content)
        resolved = workspace.resolve("f")
        assert resolved is not None and workspace.read(resolved, 2) == b"ne"
        for missing in ("d", "nothing", "f/x", "gone/x"):
            there = workspace.resolve(missing)
            assert there is not None and workspace.read(there, 10) is None
        for wrong in ("d", "f/x"):
            there = workspace.resolve(wrong)
            assert there is not None
            with pytest.raises(WorkspaceFault):
                workspace.write(there, b"")
        shown = seen(workspace.candidate_view())
        assert set(shown) == {b"d", b"d/g", b"d/sub", b"dl", b"f", b"gone", b"gone/y", b"p", b"p/q", b"p/q/r"}
        assert shown[b"f"][0] & 0o7777 == 0o750 and shown[b"d"][0] & 0o7777 == 0o700
        assert picture(bench.root) == before
        workspace.keep(1)
        assert seen(workspace.candidate_view()) == shown
        workspace.commit("c")
        assert picture(bench.root) == shown

    def test_a_file_tool_leaves_the_attributes_of_the_directories_it_passes(self, bench: WorkspaceBench) -> None:
        bench.fill("mkdir -p a/b; echo 1 >a/b/f; chmod 700 a/b")
        os.setxattr(bench.root / "a", "user.note", b"kept")
        os.setxattr(bench.root / "a/b/f", "user.note", b"kept too")
        before = picture(bench.root)
        workspace = bench.open()
        workspace.begin()
        for path in ("a/b/f", "a/b/new"):
            resolved = workspace.resolve(path)
            assert resolved is not None
            workspace.write(resolved, b"2")
        assert [c.path for c in workspace.attempt_changes().changes] == ["a/b/f", "a/b/new"]
        workspace.keep(1)
        workspace.commit("c")
        after = picture(bench.root)
        for path in (b"a", b"a/b", b"a/b/f"):
            assert (after[path][0], after[path][2]) == (before[path][0], before[path][2])

    def test_the_listing_is_breadth_first_bounded_and_merged(self, bench: WorkspaceBench) -> None:
        """R115"""
        bench.fill("mkdir -p a/b .git; echo 1 >a/b/c; echo 2 >z; echo 3 >.git/x; ln -s z l")
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "rm z; echo n>a/n")
        listed, cut = workspace.listing(100)
        assert [entry.path for entry in listed] == [".git", "a", "l", "a/b", "a/n", "a/b/c"] and not cut
        assert workspace.listing(2) == (listed[:2], True)

    def test_a_missing_root_is_refused(self, bench: WorkspaceBench, tmp_path: Path) -> None:
        with pytest.raises(WorkspaceFault):
            bench.provider.open(str(tmp_path / "nowhere"), "t", 1 << 20)
        (tmp_path / "file").touch()
        with pytest.raises(WorkspaceFault):
            bench.provider.open(str(tmp_path / "file"), "t", 1 << 20)

    def test_a_parent_swapped_for_a_link_stops_the_commit_and_the_victim_is_intact(
        self, bench: WorkspaceBench, tmp_path: Path
    ) -> None:
        """No swapped parent ever leads a write out of the workspace. R071"""
        bench.fill("mkdir -p a/b; echo 1 >a/b/f")
        victim = tmp_path / "victim"
        (victim / "b").mkdir(parents=True)
        (victim / "b" / "f").write_text("precious")
        workspace = bench.open()
        workspace.begin()
        act(workspace.action_view(), "echo evil > a/b/f; echo new > a/b/n")
        workspace.keep(1)
        os.rename(bench.root / "a", bench.root / "a_")
        os.symlink(victim, bench.root / "a")
        with pytest.raises(ConflictFault):
            workspace.commit("c")
        assert (victim / "b" / "f").read_text() == "precious" and os.listdir(victim / "b") == ["f"]
        os.unlink(bench.root / "a")
        os.rename(bench.root / "a_", bench.root / "a")
        workspace.commit("c")
        assert (bench.root / "a/b/f").read_text() == "evil\n"

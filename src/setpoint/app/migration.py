"""Which open runs a deploy leaves as they are, which could go on under the newest version, and which it would break.

A run is pinned to the digest of its definition. As long as that version is declared the run goes on under it, whatever
else is deployed; when it no longer is, the run stays untouched until somebody declares it again or moves the run.

A run can be moved when the newest version continues what it has begun:

- in every block under way the nodes that are done are the same, by name and order: the cursor of a block is a number;
- a node that has begun is still there, of the same kind, and means the same for what is under way at it;
- what is under way, or could have to be taken back, still has its capability, and what was irreversible still is;
- the state of the run and its input fit the new schemas.

What has not begun may change as it likes, and so may the code of steps and whatever is done. A granted approval stays
as long as the rules it was asked by are the same; the engine finds one that rests on other rules void and asks anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from setpoint.app.application import App
from setpoint.app.runs import KIND, Runs
from setpoint.engine.runs.journal import RunJournal, read_run
from setpoint.engine.runs.program import ChildCode, Program
from setpoint.kernel import limits
from setpoint.kernel.errors import LeaseLost, UsageFault
from setpoint.kernel.flow import (
    AnyNode,
    Approval,
    ApprovalTerms,
    Block,
    Branch,
    Call,
    Child,
    Contract,
    Definition,
    Map,
    Parallel,
    Repeat,
    WaitFor,
    is_below,
    join,
    read_definition,
    walk,
)
from setpoint.kernel.run_events import Migrated
from setpoint.kernel.run_record import Effect, RunRecord, Scope
from setpoint.ports.log import Log

Standing = Literal["same", "kept", "movable", "breaks"]
"""same: it runs the newest version. kept: another one, which is still declared, so it goes on. movable: its version is
not declared any more, and it could go on under the newest. breaks: it could not; it stays as it is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a deploy means for one open run. ``reason`` and ``node`` say why it cannot be moved, ``changes`` what would
    be different for it if it is. A kept run may be movable, too."""

    run_id: str
    workflow: str
    version: int
    state: str
    standing: Standing
    newest: int = 0  # 0: the workflow is not declared
    can_move: bool = False
    reason: str = ""
    node: str = ""
    changes: tuple[str, ...] = ()


def plan_migration(log: Log, app: App) -> list[Verdict]:
    """The verdict on every run that is not over, the oldest first. Nothing is written."""
    programs = app.programs()
    found: list[Verdict] = []
    for stream in reversed(log.streams(KIND)):
        record, _ = read_run(log, stream.stream)
        if not record.is_terminal:
            found.append(judge_run(log, record, programs))
    return found


async def migrate(runs: Runs, run_id: str, *, by: str) -> Verdict:
    """Move a run to the newest version of its workflow. UsageFault when it cannot be, LeaseLost while it is worked on;
    in both cases nothing was written."""
    if runs.is_at_work(run_id):
        raise LeaseLost(f"run {run_id} is worked on by this process; it can be moved when it waits")
    lease = runs.log.claim(run_id, runs.owner, limits.LEASE_TTL_MS)
    try:
        record, head = read_run(runs.log, run_id)
        verdict = judge_run(runs.log, record, runs.programs)
        if not verdict.can_move:
            raise UsageFault(f"run {run_id} cannot be moved: {verdict.reason}")
        definition = newest_of(runs.programs, record.workflow).definition  # type: ignore[union-attr]
        journal = RunJournal(runs.log, runs.clock, lease, head, record)
        await journal.write(
            Migrated(
                definition=journal.store(definition.document),
                definition_digest=definition.digest,
                version=definition.version,
                by=by,
            ),
            wake_ms=0,
        )
    finally:
        runs.log.release(lease)
    return verdict


def judge_run(log: Log, record: RunRecord, programs: Mapping[str, Program]) -> Verdict:
    """The verdict on one run, over what is declared now."""
    facts: dict[str, Any] = {
        "run_id": record.run_id,
        "workflow": record.workflow,
        "version": record.version,
        "state": record.state,
    }
    is_declared = record.definition_digest in programs
    newest = newest_of(programs, record.workflow)
    if record.is_terminal:
        return Verdict(**facts, standing="same", reason=f"it is over ({record.state})")
    if newest is None:
        return Verdict(**facts, standing="breaks", reason=f"the application declares no workflow {record.workflow}")
    facts["newest"] = newest.definition.version
    if newest.definition.digest == record.definition_digest:
        return Verdict(**facts, standing="same", reason="it runs the newest version already")
    assert record.definition is not None
    old = read_definition(log.payload(record.definition.ref))
    move = _Move(log, record, old, newest, programs)
    try:
        move.check()
    except _Breaks as found:
        standing: Standing = "kept" if is_declared else "breaks"
        return Verdict(**facts, standing=standing, reason=str(found), node=found.node)
    return Verdict(**facts, standing="kept" if is_declared else "movable", can_move=True, changes=tuple(move.changes))


def newest_of(programs: Mapping[str, Program], workflow: str) -> Program | None:
    """The newest declared version of a workflow, None when there is none."""
    versions = [program for program in programs.values() if program.definition.name == workflow]
    return max(versions, key=lambda program: program.definition.version, default=None)


class _Breaks(Exception):
    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(slots=True)
class _Move:
    """One run against one newer definition."""

    log: Log
    record: RunRecord
    old: Definition
    program: Program
    programs: Mapping[str, Program]
    changes: list[str] = field(default_factory=list[str])

    @property
    def new(self) -> Definition:
        return self.program.definition

    @property
    def label(self) -> str:
        return f"version {self.new.version}"

    def check(self) -> None:
        """Raise _Breaks for the first thing that does not go on."""
        before, after = _blocks(self.old), _blocks(self.new)
        for path, cursor in sorted(self.record.blocks.items(), key=lambda one: one[0].count("/")):
            static = next(at for at in before if is_below(at, path))
            if static not in after:
                raise _Breaks(path, f"{path} is under way, and {self.label} does not have it")
            self._block(path, before[static], after[static], cursor)
        self._taken_back()
        self._pivot()
        self._fits("state", self.old.state, self.new.state, self._states())
        self._fits("input", self.old.input, self.new.input, self._input())
        self._tickets()

    # Blocks and nodes

    def _block(self, path: str, old: Block, new: Block, cursor: int) -> None:
        done, would = [node.name for node in old[:cursor]], [node.name for node in new]
        for at, name in enumerate(done):
            if at < len(would) and would[at] == name:
                continue
            node = join(path, name)
            if name not in would:
                raise _Breaks(node, f"{node} is done, and {self.label} does not have it")
            other = join(path, would[at])
            if would[at] in done:
                raise _Breaks(node, f"{self.label} has the nodes {node} and {other}, which are done, in another order")
            raise _Breaks(other, f"{self.label} has {other} before {node}, which is done; it would be left out")
        if cursor < len(old) and self._has_begun(join(path, old[cursor].name)):
            self._open(join(path, old[cursor].name), old[cursor], new[cursor] if cursor < len(new) else None)
            cursor += 1
        left, right = [node.name for node in old[cursor:]], would[cursor:]
        if left != right:
            self.changes.append(
                f"in {path} come next: {', '.join(right) or 'none'} (so far: {', '.join(left) or 'none'})"
            )

    def _has_begun(self, path: str) -> bool:
        """Whether anything is under way at a node or in it. Attempts that came to nothing are not."""
        record = self.record
        return any(path in at for at in (record.labels, record.waits, record.effects, record.tickets, record.children))

    def _open(self, path: str, old: AnyNode, new: AnyNode | None) -> None:
        if new is None or new.name != old.name:
            instead = "nothing more" if new is None else f"{new.name} there"
            raise _Breaks(path, f"{path} has begun, and {self.label} has {instead}")
        if type(old) is not type(new):
            raise _Breaks(path, f"{path} has begun as {_kind(old)}, and is {_kind(new)} in {self.label}")
        for why in self._differences(path, old, new):
            raise _Breaks(path, f"{path} has begun, and {why}")
        if old != new and not any(True for _ in old.blocks()):
            self.changes.append(f"{path} goes on as {self.label} has it")

    def _differences(self, path: str, old: AnyNode, new: AnyNode) -> Iterator[str]:
        """Why what is under way at a node could not go on there, in words that follow "and"."""
        match old, new:
            case Call(), Call():
                yield from self._call(old.capability, new.capability, self.record.effects.get(path))
            case Branch(), Branch() if (label := self.record.labels.get(path, "")) not in new.cases:
                yield f"its case {label!r} is not in {self.label}"
            case Parallel(), Parallel() if set(old.branches) != set(new.branches):
                yield f"its branches are {', '.join(old.branches)}; in {self.label}: {', '.join(new.branches)}"
            case Map(), Map():
                yield from self._map(path, old, new)
            case Repeat(), Repeat() if int(self.record.labels.get(path, "0")) >= new.at_most:
                rounds = int(self.record.labels[path]) + 1
                yield f"is in its round {rounds}; {self.label} allows {new.at_most}"
            case WaitFor(), WaitFor() if old.signal != new.signal:
                yield f"waits for the signal {old.signal!r}; in {self.label} for {new.signal!r}"
            case Approval(), Approval() if old.of != new.of:
                yield f"stands for {old.of or 'going on'}; in {self.label} for {new.of or 'going on'}"
            case Child(), Child():
                yield from self._child(old, new)
            case _:
                pass

    def _call(self, old: Contract, new: Contract, effect: Effect | None) -> Iterator[str]:
        if old.name != new.name:
            yield f"calls {old.name}; in {self.label} {new.name}"
        if old.effect != new.effect:
            yield f"{old.name} is {old.effect}; in {self.label} {new.effect}"
        if old.arguments != new.arguments:
            yield f"{self.label} calls {new.name} with other arguments"
        if effect is None:
            return
        for what, was, still in (
            ("probe", old.has_probe, new.has_probe),
            ("memory of keys", old.dedups, new.dedups),
            ("compensator", bool(effect.compensator), new.has_compensator),
        ):
            if was and not still:
                yield f"its effect is under way; {new.name} has no {what} in {self.label}"

    def _map(self, path: str, old: Map, new: Map) -> Iterator[str]:
        if (old.item, old.collect, old.into) != (new.item, new.collect, new.into):
            yield f"{self.label} keeps its items or results in other fields"
        if (kept := self.record.lists.get(path)) is not None:
            count = len(msgspec.json.decode(self.log.payload(kept.ref)))
            if count > new.at_most:
                yield f"has {count} items; {self.label} allows {new.at_most}"

    def _child(self, old: Child, new: Child) -> Iterator[str]:
        """A child that was started goes on under its own definition, which must be known for its output to be read."""
        if old.workflow != new.workflow:
            yield f"has started a run of {old.workflow}; {self.label} starts {new.workflow}"
        elif old.definition != new.definition and old.definition not in self.programs:
            yield f"the run of version {old.version} of {old.workflow} it waits for is of a definition that is gone"

    # What stands, and what it rests on

    def _taken_back(self) -> None:
        for standing in self.record.undo:
            contract = _contract(self.program, standing.capability)
            if contract is None or not contract.has_compensator:
                why = "does not declare" if contract is None else "declares without a compensator"
                raise _Breaks(
                    standing.node,
                    f"the effect of {standing.node} stands and may have to be taken back; {self.label} {why} "
                    f"{standing.capability}",
                )
            given = msgspec.json.decode(self.log.payload(standing.arguments.ref))
            if (problem := _problem(contract.arguments, given)) is not None:
                raise _Breaks(
                    standing.node,
                    f"the effect of {standing.node} stands, and its arguments do not fit {standing.capability} of "
                    f"{self.label}: {problem}",
                )

    def _pivot(self) -> None:
        """What the new definition proves of its paths holds for this run only if its pivot is one there, too."""
        if not self.record.pivot:
            return
        at = self.record.pivot.partition(">")[0]
        for static, node in walk(self.new.body, self.new.name):
            is_pivot = (isinstance(node, Call) and node.capability.effect == "irreversible") or (
                isinstance(node, Child) and "irreversible" in node.effects
            )
            if is_pivot and is_below(static, at):
                return
        raise _Breaks(at, f"{at} was irreversible when it was done, and is not in {self.label}")

    def _states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        root = self._values(self.record.scopes[""])
        for path in sorted(self.record.scopes):
            above = [at for at in sorted(self.record.scopes) if at and (path == at or path.startswith(f"{at}/"))]
            values = dict(root)
            for at in above:
                values.update(self._values(self.record.scopes[at]))
            yield path, values

    def _values(self, scope: Scope) -> dict[str, Any]:
        loaded = {name: msgspec.json.decode(self.log.payload(ref.ref)) for name, ref in scope.refs.items()}
        return {**scope.values, **loaded}

    def _input(self) -> Iterator[tuple[str, Any]]:
        if self.record.input is not None:
            yield "", msgspec.json.decode(self.log.payload(self.record.input.ref))

    def _fits(self, what: str, old: dict[str, Any], new: dict[str, Any], values: Iterator[tuple[str, Any]]) -> None:
        if old == new:
            return
        for path, found in values:
            if (problem := _problem(new, found)) is not None:
                where = f" in {path}" if path else ""
                raise _Breaks(path, f"the {what} of the run{where} does not fit {self.label}: {problem}")
        gone = sorted(set(old.get("properties", {})) - set(new.get("properties", {})))
        added = sorted(set(new.get("properties", {})) - set(old.get("properties", {})))
        if gone:
            self.changes.append(f"{', '.join(gone)} of the {what} would not be read any more")
        if added:
            self.changes.append(f"{', '.join(added)} of the {what} would begin with the default")

    def _tickets(self) -> None:
        before, after = _terms(self.old), _terms(self.new)
        for path, ticket in (*self.record.tickets.items(), *self.record.answered.items()):
            if ticket.used or ticket.outcome not in ("", "granted"):
                continue
            static = next((at for at in before if is_below(at, path)), "")
            if before.get(static) != after.get(static):
                self.changes.append(f"the approval {ticket.ticket_id} at {path} is void: it was asked by other rules")


def _blocks(definition: Definition) -> dict[str, Block]:
    """Every block by its static path."""
    found = {definition.name: definition.body}
    for path, node in walk(definition.body, definition.name):
        for name, block in node.blocks():
            found[join(path, name)] = block
    return found


def _terms(definition: Definition) -> dict[str, tuple[ApprovalTerms, ...]]:
    """By static path, the rules that a ticket at a node rests on."""
    found: dict[str, tuple[ApprovalTerms, ...]] = {}
    for path, node in walk(definition.body, definition.name):
        if isinstance(node, Approval):
            found[path] = (node.terms,)
            if node.of:
                found[node.of] = (*found.get(node.of, ()), node.terms)
        if isinstance(node, Call) and node.approval is not None:
            found[path] = (*found.get(path, ()), node.approval)
    return found


def _contract(program: Program, capability: str) -> Contract | None:
    """Of a capability that a program calls, or one it starts."""
    if capability in program.effectors:
        return program.effectors[capability].contract
    inner = (_contract(code.program, capability) for code in program.code.values() if isinstance(code, ChildCode))
    return next((contract for contract in inner if contract is not None), None)


def _kind(node: AnyNode) -> str:
    tag = type(node).__struct_config__.tag
    return f"{'an' if str(tag)[0] in 'aeiou' else 'a'} {tag}"


def _problem(schema: dict[str, Any], value: Any) -> str | None:
    """Why a value does not fit a JSON Schema, None when it does."""
    import jsonschema_rs  # 20 ms that an application without migrations need not pay

    for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(value):
        where = ".".join(str(part) for part in error.instance_path)
        return f"{where}: {error.message}" if where else str(error.message)
    return None

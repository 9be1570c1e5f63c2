"""Who can say yes to the calls a task holds: found before it starts: a gate nobody can open is a no (L10)."""

from __future__ import annotations

from collections.abc import Sequence

from setpoint.adapters.approvers.roster import Approver, Roster
from setpoint.app.approvers import read_approvers
from setpoint.app.places import Places
from setpoint.kernel.contract import ApprovalRule, Task
from setpoint.kernel.errors import ClosureMissing, UsageFault
from setpoint.ports.clock import Clock


def approvers_of(places: Places, declared: Sequence[Approver] = ()) -> tuple[Approver, ...]:
    """The people of the installation's roster, and those an application declared. UsageFault for a bad roster."""
    installed = read_approvers(places.approvers) if places.approvers.exists() else ()
    return (*installed, *declared)


def roster_of(task: Task, places: Places, declared: Sequence[Approver], clock: Clock) -> Roster:
    """The roster a task is pursued with; nobody, and no file read, when no rule of it asks people."""
    if not task.policy.approve:
        return Roster((), clock)
    try:
        return Roster(approvers_of(places, declared), clock)
    except ValueError as fault:
        raise UsageFault(
            f"{fault}; nobody can approve until that is mended", hint=f"See {places.approvers}."
        ) from fault


def unanswerable(rule: ApprovalRule, approvers: Sequence[Approver], now_ms: int) -> str:
    """Why no number of signatures would satisfy a rule now; "" when people can."""
    roles: dict[str, set[str]] = {}
    for approver in approvers:
        if approver.is_valid(now_ms):
            roles.setdefault(approver.name, set()).update(approver.roles)
    entitled = {name: held & set(rule.by) for name, held in roles.items() if held & set(rule.by)}
    needed = max(rule.quorum, len(rule.by)) if rule.each_role else rule.quorum
    wanted = " or ".join(rule.by)
    if not entitled:
        return f"nobody in the roster has the role {wanted}"
    if len(entitled) < needed:
        return f"{needed} people must approve as {wanted}, and the roster has {len(entitled)}"
    missing = [role for role in rule.by if all(role not in held for held in entitled.values())]
    return f"nobody in the roster has the role {missing[0]}" if rule.each_role and missing else ""


def require_approvers(task: Task, roster: Roster, places: Places, now_ms: int) -> None:
    """ClosureMissing (exit 12) when a rule asks people who are not there: its calls could only ever expire."""
    for rule in task.policy.approve:
        why = unanswerable(rule, roster.approvers, now_ms)
        if why:
            raise ClosureMissing(
                f"task {task.name} does not start: calls with {rule.when} need an approval, and {why}",
                hint=f"Name them in {places.approvers}: approvers: [{{name: anna, roles: [{rule.by[0]}], "
                "key: ssh-ed25519 AAAA...}]",
            )

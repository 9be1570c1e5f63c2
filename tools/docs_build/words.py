"""What only people can say about a code: why it came, and what to do. The generator refuses a code without words."""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final[dict[int, str]] = {
    0: "The task is done and certified, or the verb did what it was asked. `diff` and `plan` exit 0 whatever they "
    "find, unless `--detailed-exitcode` is given.",
    1: "A bug, or a part of the world that has no code of its own (the store cannot be written, a directory is not "
    "readable). A bug leaves a file with its traceback in the state directory; `SETPOINT_DEBUG=1` prints it.",
    2: "Nothing was started. Every problem of a manifest is listed as `file:line:column`, with the nearest valid name.",
    10: "Only with `--detailed-exitcode`: `diff` or `plan` found something that is not met.",
    11: "The trajectory ended without meeting the task: `Stalled` (no route made progress), `RoutesExhausted` (no "
    "model had another proposal), `ContextTooLarge`, or a person ended it (`Cancelled`, `Killed`). The tree is as it "
    "was. `setpoint why` names the open items, the last evidence and the next step. A run: it failed and was taken "
    "back, or a step of it has a bug and it is paused; mend it and `setpoint resume`.",
    12: "A rule said no before or at the end: the task's exposure demands evidence, isolation or a bound it does not "
    "have (`setpoint lint` names each gap), the machine cannot isolate at the task's tier (`setpoint doctor`), or the "
    "result brings no progress that may be committed.",
    13: "It asked something, waits for people's yes (`setpoint approvals`) or for a signal, or was paused. `setpoint "
    "answer`, `approve`, `signal` or `resume` goes on.",
    14: "Turns, tokens, dollars or wall clock are used up, or the next call would use them up. A state that meets "
    "every check but is over budget is not accepted either.",
    15: "The user's tree changed in a path the task changed too, or a plan was made for another state, or the required "
    "base commit is not checked out. Nothing was overwritten. A run: another one owns the key of its effect, with "
    "other arguments or under way; nothing was sent.",
    16: "An outside effect may or may not have happened, and nothing the runtime may do can tell. `setpoint effects "
    "list --open` names it; find out, and say so with `setpoint effects settle KEY --happened | --not-happened`.",
    17: "What the evidence rests on changed meanwhile: the workspace, the sealed files or the contract; or "
    "`certificate verify --workspace` found another state than the certified one.",
    18: "A check crashed, timed out, could not start or lost its report. Missing evidence is never a pass. Run "
    "`setpoint diff` to see the check alone.",
    19: "A certificate, a log or a replay does not hold. Nothing is repaired; the message names the position.",
}

REFUSALS: Final[dict[str, str]] = {
    "MALFORMED": "The reply, or one call in it, is not JSON of the expected form. The pointer names the place.",
    "NO_CALL": "The reply holds text only. Text has no effect; only calls are acted on.",
    "UNKNOWN_TOOL": "The task's allow-list has no such tool.",
    "SCHEMA": "The arguments do not fit the tool's JSON Schema.",
    "STRUCTURE": "The arguments fit the schema but break a rule between them.",
    "CUT_OFF": "The reply was cut by its length. A cut reply is never dispatched, however complete it looks.",
    "RATE": "The tool's `max_calls` is used up.",
    "TOO_MANY_CALLS": "One reply holds more calls than are read.",
    "RESTRICTED": "Over 90 % of the budget is spent: only reads, questions and the claim are permitted.",
    "OUTSIDE_WORKSPACE": "The path leads out of the workspace, by `..`, a link or an absolute name.",
    "OUTSIDE_GRANT": "The path, or the command, lies outside what the tool was granted.",
    "FORBIDDEN_PATH": "`goal.forbid` names the path.",
    "PRECONDITION": "A `require` expression of the tool does not hold, or could not be evaluated.",
    "APPROVAL_REQUIRED": "A rule of `policy.approve` holds and the call cannot be asked for here: it does not come "
    "first in its proposal, no ticket can hold it exactly, or nobody is asked, as in a plan.",
    "APPROVAL_DENIED": "People said no to the call. Nothing of its proposal was dispatched.",
    "APPROVAL_EXPIRED": "Nobody said enough in time, and silence is a no. Nothing of its proposal was dispatched.",
    "APPROVAL_VOID": "People said yes, and what would be done now is not what they were asked: arguments, state, "
    "rules, grant, budget or the key of an approver have changed since. Nothing of its proposal was dispatched.",
    "LOOP_DETECTED": "The same call was made on the same state with the same outcome before, too often.",
    "BLOCKED": "This very proposal was tried, judged and rolled back before.",
}

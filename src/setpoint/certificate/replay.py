"""Replay of rulings and verdicts: every permit, savepoint, delta, rejected claim and commit from the events before it.

What an event asserts is computed again from what the log held up to there, so a changed history contradicts itself
even when it was chained, hashed and signed anew. What no replay can see: a tool that lied, an effect outside the
runtime, or a whole invented history that is consistent in every event. Expressions (preconditions, the rules that ask
for approvals) are not evaluated here; what was asked, answered and dispatched by it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from .approvals import Held, milliseconds, read_signed, read_ticket
from .canonical import digest
from .contract import Approval, Contract
from .globs import matches
from .implicit import changed_paths, distances
from .proposals import call_digest, call_digests, is_call
from .verdicts import Verdicts
from .vocabulary import NEVER_INSIDE, PASSED_OVER, REPLAYED, fields, reference

HARMLESS: Final = ("pure", "read")
BUILTIN_EFFECTS: Final = {
    "shell_exec": ("reversible", "read"),
    "file_read": ("read",),
    "file_edit": ("reversible",),
    "file_write": ("reversible",),
    "ask_operator": ("pure",),
    "complete_task": ("pure",),
}
T = TypeVar("T", dict[str, Any], list[Any])

PATH_TOOLS: Final = ("file_read", "file_edit", "file_write")
CLAIM_TOOL: Final = "complete_task"
AFTER_COMMIT: Final = frozenset(
    {
        "TurnEnded",
        "LeaseClaimed",
        "CheckpointWritten",
        "ControlRequested",
        "ControlApplied",
        "DriftFound",
        "EvidenceRecorded",
        "DeltaMeasured",
    }
)
"""What may stand between the commit and the certificate: book-keeping, and judging the user's tree once more."""


@dataclass(frozen=True, slots=True)
class Kept:
    savepoint: int
    fingerprint: str
    seq: int
    changed: int


@dataclass(frozen=True, slots=True)
class _Changes:
    """A recorded change set: every path it touches, and the path of each change in order."""

    touched: list[str]
    paths: list[str]


@dataclass(slots=True)
class _Turn:
    """What happened in the present turn, since its start or since a crash interrupted it."""

    proposed: set[str] | None = None
    permits: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    refused: set[int] = field(default_factory=set[int])
    intents: dict[int, int] = field(default_factory=dict[int, int])  # ordinal -> attempt
    in_flight: set[int] = field(default_factory=set[int])
    measured: set[str] = field(default_factory=set[str])
    claimed: bool = False
    claim_rejected: bool = False
    rejected_for_nothing: int = 0  # seq of a claim rejected although the delta was empty
    rolled_back: bool = False
    held: Held | None = None  # the call that people decide on


class Replay:
    """One pass over the events. ``problems`` says, in order, what does not follow; empty means all of it does."""

    def __init__(self, contract: Contract, payloads: Mapping[str, bytes]) -> None:
        self.contract = contract
        self.payloads = payloads
        self.verdicts = Verdicts(contract)
        self.problems: list[str] = []
        self.accepted: dict[str, Any] | None = None
        self.committed: dict[str, Any] | None = None
        self.committed_at = ""  # time of the last commit
        self.savepoints: list[Kept] = []  # those that stand
        self.used = {"turns": 0, "tokens": 0, "usd_micros": 0, "wall_ms": 0}
        self.raised = {"turns": 0, "tokens": 0, "usd_micros": 0, "wall_ms": 0}
        self.counts = {"permits": 0, "refusals": 0, "rollbacks": 0, "claims_rejected": 0}
        self._base_fingerprint: str | None = None
        self.held: list[Held] = []  # every call that people were asked about
        self._nonces: set[str] = set()
        self._base = ""  # digest of the user's tree as last found
        self._savepoints_used = 0
        self._turn = _Turn()
        self._number = 0
        self._calls: dict[str, int] = {}
        self._call_times: dict[str, list[int]] = {}
        self._elapsed_ms = 0
        self._planned: dict[str, Any] | None = None
        self._last = ""  # type of the last event that states a fact
        self._referenced: set[str] = set()
        self._changes: dict[str, _Changes] = {}  # against the base, by fingerprint

    def run(self, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            self._step(event)
            if event["type"] not in AFTER_COMMIT:
                self._last = event["type"]
        self._close_turn(events[-1]["seq"])
        if self._last != "Committed":
            self._say(events[-1]["seq"], f"the last fact is {self._last}, not a commit: cut, or not finished")
        for name, ceiling in self.limit.items():
            if self.used[name] > ceiling:
                self.problems.append(f"{self.used[name]} {name} were used, the ceiling is {ceiling}")
        if unused := sorted(self.payloads.keys() - self._referenced):
            self.problems.append(f"no event refers to the payload {unused[0]}")

    @property
    def fingerprint(self) -> str | None:
        """Of the savepoint that stands now, or of the base; None before the base was judged."""
        return self.savepoints[-1].fingerprint if self.savepoints else self._base_fingerprint

    @property
    def _standing(self) -> int:
        return self.savepoints[-1].savepoint if self.savepoints else 0

    def _say(self, seq: int, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(f"event {seq}: {problem}")

    def _step(self, event: dict[str, Any]) -> None:
        kind, seq = event["type"], event["seq"]
        if kind in PASSED_OVER:
            return
        if kind not in REPLAYED:
            why = "cannot come before the certificate" if kind in NEVER_INSIDE else "is unknown to this verifier"
            self._say(seq, f"an event of type {kind!r} {why}")
            return
        try:
            data = fields(event)
        except ValueError as error:
            self.problems.append(str(error))
            return
        if (self.accepted is None) != (kind == "TaskAccepted"):
            self._say(seq, "the log does not begin with one TaskAccepted, or holds a second one")
            return
        if kind != "TurnStarted" and event["turn"] != self._number:
            self._say(seq, f"it names turn {event['turn']}, but turn {self._number} is running")
        getattr(self, _STEPS[kind])(event, data)

    # Acceptance and turns

    def _accept(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.accepted = data
        self._base = data["base_digest"]
        if data["task_digest"] != self.contract.digest or data["name"] != self.contract.name:
            self._say(event["seq"], "the task accepted is not the task of this certificate")

    def _start_turn(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._close_turn(event["seq"])
        if event["turn"] != self._number + 1:
            self._say(event["seq"], f"turn {event['turn']} follows turn {self._number}")
        self._number = event["turn"]
        self.used["turns"] += 1
        self._elapsed_ms = data["elapsed_ms"]
        self.used["wall_ms"] = max(self.used["wall_ms"], data["elapsed_ms"])

    def _raise(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A person allowed more; the statement's ceilings are the contract's and this."""
        for name in self.raised:
            self.raised[name] += data[name]
            if data[name] < 0:
                self._say(event["seq"], f"the budget of {name} was raised by {data[name]}")

    @property
    def limit(self) -> dict[str, int]:
        """The ceilings that held at the end."""
        return {name: amount + self.raised[name] for name, amount in self.contract.budget.items()}

    def _end_turn(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.used["wall_ms"] = max(self.used["wall_ms"], data["elapsed_ms"])
        self._close_turn(event["seq"])

    def _close_turn(self, seq: int) -> None:
        """Every dispatch was settled; a claim was rejected if the evidence contradicts it, and only then.

        A turn taken back as a whole need not reject its claim.
        """
        turn = self._turn
        unanswered = turn.claimed and not turn.claim_rejected and not turn.rolled_back
        if turn.in_flight:
            self._say(seq, f"the turn ended while calls {sorted(turn.in_flight)} were not settled")
        if turn.rejected_for_nothing:
            self._say(turn.rejected_for_nothing, "a claim was rejected although nothing was unmet")
        if unanswered and self.verdicts.open:
            self._say(seq, "a claim of completion was not rejected although criteria were unmet")
        self._turn = _Turn()

    # Proposals and rulings

    def _charge(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.used["tokens"] += data["input_tokens"] + data["output_tokens"]
        self.used["usd_micros"] += data["usd_micros"]

    def _replied(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._charge(event, data)
        reply = self._inline_or_payload(event["seq"], dict, data["reply"], data["reply_ref"])
        if reply is not None:
            self._turn.proposed = set() if data["stop"] in ("length", "refusal") else call_digests(reply)

    def _authorized(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        turn, seq, tool = self._turn, event["seq"], data["tool"]
        self._rule_once(seq, data["ordinal"])
        self._rule_on_ticket(event, data)
        turn.permits[data["ordinal"]] = data
        self.counts["permits"] += 1
        turn.claimed = turn.claimed or tool == CLAIM_TOOL
        if turn.proposed is None or data["call_digest"] not in turn.proposed:
            self._say(seq, f"the permitted call of {tool} is not among the calls the model proposed in this turn")
        action = self.contract.actions.get(tool)
        if action is None:
            self._say(seq, f"{tool} was permitted, but the task does not allow that tool")
            return
        if data["effect"] not in BUILTIN_EFFECTS.get(tool, (data["effect"],)):
            self._say(seq, f"{tool} cannot have the effect class {data['effect']!r}")
        self._rule_on_path(seq, data, action.paths)

    def _rule_on_path(self, seq: int, data: dict[str, Any], granted: tuple[str, ...] | None) -> None:
        tool, path, harmless = data["tool"], data["path"], data["effect"] in HARMLESS
        if path in ("", "."):
            if tool in PATH_TOOLS and not harmless:
                self._say(seq, f"{tool} was permitted without a path")
            return
        if any(part in ("", ".", "..") for part in path.split("/")):
            self._say(seq, f"{path!r} was permitted, but it is no path inside the workspace")
            return
        if granted is not None and not any(matches(pattern, path) for pattern in granted):
            self._say(seq, f"{path!r} was permitted for {tool}, but lies outside its paths")
        if not harmless and any(matches(pattern, path) for pattern in self.contract.forbid):
            self._say(seq, f"{path!r} was permitted for {tool}, but the task forbids touching it")

    def _refused(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._rule_once(event["seq"], data["ordinal"])
        self._turn.refused.add(data["ordinal"])
        self.counts["refusals"] += 1

    def _rule_once(self, seq: int, ordinal: int) -> None:
        if ordinal in self._turn.permits or ordinal in self._turn.refused:
            self._say(seq, f"call {ordinal} was ruled on before in this turn")

    # Approvals

    def _asked(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        turn, seq = self._turn, event["seq"]
        self._elapsed_ms = max(self._elapsed_ms, data["elapsed_ms"])
        self.used["wall_ms"] = max(self.used["wall_ms"], data["elapsed_ms"])
        data_bytes = self._payload(seq, data["ticket"])
        if data_bytes is None:
            return
        try:
            ticket = read_ticket(data_bytes)
        except ValueError as error:
            self._say(seq, f"the payload it refers to is no ticket: {error}")
            return
        if turn.held is not None or turn.permits:
            self._say(seq, "people were asked about a call that was not the first one permitted in its turn")
        number, _, ordinal = data["node"].partition(".")
        held = Held(int(ordinal) if ordinal.isdecimal() else -1, ticket, digest(ticket))
        if number != str(self._number) or held.ordinal < 0:
            self._say(seq, f"{data['node']!r} is no call of turn {self._number}")
        action = digest([ticket["capability"], ticket["arguments"], ticket["base_digest"], ticket["policy_digest"]])
        expected = {
            "node": data["node"],
            "ticket_id": data["ticket_id"],
            "expires_at_ms": data["expires_at_ms"],
            "name": self.contract.name,
            "definition_digest": self.contract.digest,
            "policy_digest": self.contract.policy_digest,
            "base_digest": digest([self._base, self.fingerprint]),
        }
        for name, value in expected.items():
            if ticket[name] != value:
                self._say(seq, f"{name} of the ticket is {ticket[name]!r}, the log and the task give {value!r}")
        if data["action_digest"] != action:
            self._say(seq, "the digest of the action is not that of the ticket's")
        if call_digest(ticket["capability"], ticket["arguments"]) not in (turn.proposed or ()):
            self._say(seq, "the ticket is about a call the model did not propose in this turn")
        if not any(self._follows(ticket, rule) for rule in self.contract.approvals):
            self._say(seq, "the ticket asks other people, or for another time, than any rule of the task")
        if ticket["nonce"] in self._nonces:
            self._say(seq, "a nonce was used before")
        self._nonces.add(ticket["nonce"])
        turn.held = held
        self.held.append(held)

    @staticmethod
    def _follows(ticket: dict[str, Any], rule: Approval) -> bool:
        asks = (tuple(ticket["by"]), ticket["quorum"], ticket["each_role"])
        lasts = ticket["expires_at_ms"] - ticket["requested_at_ms"]
        return (*asks, lasts) == (rule.by, rule.quorum, rule.each_role, rule.expires_ms)

    def _held_in(self, event: dict[str, Any], data: dict[str, Any]) -> Held | None:
        held = self._turn.held
        if held is None or held.ticket["ticket_id"] != data["ticket_id"]:
            self._say(event["seq"], f"{data['ticket_id']} is not what people were asked about in this turn")
            return None
        return held

    def _signed(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A decision that is said to count: about this very ticket, in time, by its key and another than asked."""
        held = self._held_in(event, data)
        if held is None or not data["counts"]:
            return
        seq, kept = event["seq"], self._payload(event["seq"], data["decision"])
        if kept is None:
            return
        try:
            signed = read_signed(kept)
        except ValueError as error:
            self._say(seq, f"the payload it refers to is no signed decision: {error}")
            return
        decision, ticket = signed["decision"], held.ticket
        if (decision["by"], decision["verdict"]) != (data["by"], data["verdict"]):
            self._say(seq, "the decision says something else than its event")
        if (decision["ticket_id"], decision["ticket_digest"]) != (ticket["ticket_id"], held.digest):
            self._say(seq, "the decision is about another ticket, or about this one in another form")
        if decision["by"] == ticket["requester"]:
            self._say(seq, "the requester decided on their own request")
        if decision["at_ms"] >= ticket["expires_at_ms"] or milliseconds(event["at"]) >= ticket["expires_at_ms"]:
            self._say(seq, "the decision counts although the ticket had expired")
        known = held.said.get(decision["by"])
        if known is None or known["decision"]["verdict"] != "deny":
            held.said[decision["by"]] = signed

    def _resolved(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        held, seq = self._held_in(event, data), event["seq"]
        if held is None:
            return
        said = {by: signed["decision"]["verdict"] for by, signed in held.said.items()}
        late = milliseconds(event["at"]) >= held.ticket["expires_at_ms"]
        match data["outcome"]:
            case "granted":
                keys = {held.said[by]["key"] for by in data["by"] if said.get(by) == "approve"}
                if held.outcome or late or "deny" in said.values():
                    self._say(seq, "it was granted after a no, after it had expired, or twice")
                if len(keys) != len(data["by"]) or len(keys) < held.seats:
                    self._say(seq, f"it was granted by {data['by']}, who did not all say yes, or were too few")
            case "denied":
                if (
                    held.outcome not in ("", "granted")
                    or not data["by"]
                    or any(said.get(by) != "deny" for by in data["by"])
                ):
                    self._say(seq, "it was denied, but nobody said no")
            case "expired":
                if not late:
                    self._say(seq, "it is said to have expired, but had time left")
            case "void":
                if held.outcome != "granted":
                    self._say(seq, "an approval was voided that had not been granted")
            case outcome:
                self._say(seq, f"{outcome!r} is no outcome of an approval")
        held.outcome, held.by = data["outcome"], tuple(data["by"])

    def _rule_on_ticket(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        """A permit in a turn with a held call: that call by its grant, once, in time; the others after it."""
        held, seq = self._turn.held, event["seq"]
        if held is None:
            return
        ticket = held.ticket
        if held.outcome != "granted":
            self._say(seq, "a call was permitted while people had not approved one of its proposal")
            return
        if data["ordinal"] != held.ordinal:
            if not held.used:
                self._say(seq, "a call was permitted before the held one of its proposal")
            return
        if held.used:
            self._say(seq, "an approval was used twice")
        held.used = True
        if ticket["stream"] != event["stream"]:
            self._say(seq, f"the approval was given to {ticket['stream']!r}, not to this trajectory")
        if milliseconds(event["at"]) >= ticket["expires_at_ms"]:
            self._say(seq, "a call was permitted by an approval that had expired")
        same = data["tool"] == ticket["capability"] and is_call(data["call_digest"], data["tool"], ticket["arguments"])
        if not same or data["effect"] != ticket["effect"]:
            self._say(seq, "another call was permitted than the one approved")
        if data["tool"] in PATH_TOOLS and data["path"] != ticket["target"]:
            self._say(seq, f"{data['path']!r} was permitted, {ticket['target']!r} was approved")
        if ticket["base_digest"] != digest([self._base, self.fingerprint]):
            self._say(seq, "the approval was given for another state than the one it was used on")

    def _payload(self, seq: int, ref: Any) -> bytes | None:
        """The bytes a reference names; None, and a problem, when they are not to be had."""
        found = reference(ref)
        if found is not None:
            self._referenced.add(found[0])
        kept = self.payloads.get(found[0]) if found is not None else None
        if found is None or kept is None or len(kept) != found[1]:
            self._say(seq, "the payload it refers to is missing, or of another length")
            return None
        return kept

    # Dispatch

    def _intent(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        turn, seq, ordinal, tool = self._turn, event["seq"], data["ordinal"], data["tool"]
        permit = turn.permits.get(ordinal)
        if ordinal in turn.refused:
            self._say(seq, f"call {ordinal} was dispatched although it was refused")
        elif permit is None:
            self._say(seq, f"call {ordinal} of {tool} was dispatched without a permit before it in this turn")
        elif any(permit[name] != data[name] for name in ("tool", "call_digest", "effect")):
            self._say(seq, f"call {ordinal} was dispatched as another call than the one permitted")
        if data["attempt"] <= turn.intents.get(ordinal, 0):
            self._say(seq, f"call {ordinal} was dispatched twice as attempt {data['attempt']}")
        if ordinal not in turn.intents:
            self._count_call(seq, tool)
        turn.intents[ordinal] = data["attempt"]
        turn.in_flight.add(ordinal)
        arguments = self._inline_or_payload(seq, dict, data["arguments"], data["arguments_ref"])
        if arguments is not None and not is_call(data["call_digest"], tool, arguments):
            self._say(seq, "the arguments dispatched are not those the permit was for")

    def _count_call(self, seq: int, tool: str) -> None:
        self._calls[tool] = self._calls.get(tool, 0) + 1
        action = self.contract.actions.get(tool)
        if action is not None and action.max_calls is not None and self._calls[tool] > action.max_calls:
            self._say(seq, f"{tool} was called {self._calls[tool]} times, the task allows {action.max_calls}")
        times = self._call_times.setdefault(tool, [])
        times.append(self._elapsed_ms)
        if action is not None and action.rate is not None:
            calls, per_ms = action.rate
            if len(times) > calls and times[-1] - times[-calls - 1] < per_ms:
                self._say(seq, f"{tool} was called more than {calls} times in {per_ms} ms of active time")

    def _result(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        if data["ordinal"] not in self._turn.in_flight:
            self._say(event["seq"], f"a result of call {data['ordinal']} without an intent before it")
        self._turn.in_flight.discard(data["ordinal"])

    # Evidence and verdicts

    def _observed(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        changes = self._inline_or_payload(event["seq"], list, data["changes"], data["changes_ref"])
        if changes is None:
            return
        paths = changed_paths(changes)
        if paths is None or len(changes) != data["changed"]:
            self._say(event["seq"], "it does not hold the changes it counts")
            return
        self._changes[data["fingerprint"]] = _Changes(paths, [change["path"] for change in changes])

    def _evidence(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._say(event["seq"], self.verdicts.record(event["seq"], data, event["data"]))
        if data["phase"] == "baseline":
            self._changes[data["fingerprint"]] = _Changes([], [])
        if not data["check"].startswith("invariants/@"):
            return
        known = self._changes.get(data["fingerprint"])
        if known is None:
            self._say(event["seq"], f"{data['check']} was judged on a state whose changes are not in the log")
            return
        distance = distances(self.contract, self._calls, known.touched).get(data["check"])
        if distance is not None and (data["verdict"], data["distance"]) != ("fail" if distance else "pass", distance):
            self._say(
                event["seq"], f"{data['check']} is said to {data['verdict']}, but {distance} changed paths break it"
            )

    def _drift(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        if data["what"] == "workspace":  # other files than ours changed: what was judged is not what is there
            self._base = data["found"]
            self.verdicts.forget()
        elif data["what"] == "runtime" and data["decision"] == "cross_over":
            self.verdicts.allow_new_checks()

    def _measured(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._say(event["seq"], self.verdicts.measure(data))
        if self._base_fingerprint is None:
            self._base_fingerprint = data["fingerprint"]
        self._turn.measured.add(data["fingerprint"])

    def _kept(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        turn, seq, fingerprint = self._turn, event["seq"], data["fingerprint"]
        if data["savepoint"] <= self._savepoints_used:
            self._say(seq, f"savepoint {data['savepoint']} follows savepoint {self._savepoints_used}")
        if not turn.intents:
            self._say(seq, "a savepoint was kept in a turn that dispatched nothing")
        if turn.in_flight:
            self._say(seq, f"a savepoint was kept while calls {sorted(turn.in_flight)} were not settled")
        if fingerprint not in turn.measured:
            self._say(seq, "a savepoint was kept whose state was not measured in this turn")
        if broken := self.verdicts.broken(fingerprint):
            self._say(seq, f"a savepoint was kept although hard invariants do not hold: {', '.join(broken)}")
        changes = self._changes.get(fingerprint)
        if changes is None:
            self._say(seq, "a savepoint was kept whose changes are not in the log")
        elif data["changed"] != len(changes.paths) or data["paths"] != changes.paths[: len(data["paths"])]:
            self._say(seq, "a savepoint was kept with other changes than were observed")
        self.savepoints.append(Kept(data["savepoint"], fingerprint, seq, data["changed"]))
        self._savepoints_used = max(self._savepoints_used, data["savepoint"])
        self.verdicts.keep(data["savepoint"])

    def _rolled_back(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        turn, savepoint = self._turn, data["savepoint"]
        if data["reason"] == "interrupted":  # a crash: the recorded reply is ruled on and dispatched again
            self.counts["permits"] -= len(turn.permits)
            self.counts["refusals"] -= len(turn.refused)
            self.counts["claims_rejected"] -= turn.claim_rejected
            self._turn = _Turn(proposed=turn.proposed, intents=turn.intents, held=turn.held)
            if turn.held is not None:
                turn.held.used = False
            self.verdicts.restore(savepoint, self._standing)
        else:
            self.counts["rollbacks"] += 1
            turn.rolled_back = True
            if data["reason"] == "postcondition":
                turn.rejected_for_nothing = 0
            if data["reason"] == "invariant" and not any(is_hard for _, _, is_hard in self.verdicts.open.values()):
                self._say(event["seq"], "rolled back for an invariant, but the last delta breaks no hard one")
            self.verdicts.restore(savepoint, self._standing)
        self.savepoints = [kept for kept in self.savepoints if kept.savepoint <= savepoint]
        if savepoint != self._standing or self.fingerprint not in (None, data["fingerprint"]):
            self._say(event["seq"], f"it goes back to savepoint {savepoint}, which was not kept with that state")

    def _claim_rejected(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self.counts["claims_rejected"] += not self._turn.claim_rejected
        self._turn.claim_rejected = True
        if not self.verdicts.open:
            self._turn.rejected_for_nothing = event["seq"]  # unless a broken postcondition follows

    # The end

    def _plan(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        self._planned = data

    def _commit(self, event: dict[str, Any], data: dict[str, Any]) -> None:
        seq, planned = event["seq"], self._planned
        if not data["commit_id"] and planned is None:  # nothing to apply: the base itself, or a state equal to it
            if data["changed"] or (self.savepoints and self.savepoints[-1].changed):
                self._say(seq, "changes were committed without a plan")
        elif planned is None or any(planned[name] != data[name] for name in ("commit_id", "fingerprint")):
            self._say(seq, "the commit was not planned before, or was planned for another state")
        elif planned["savepoint"] != self._standing:
            self._say(seq, f"savepoint {planned['savepoint']} was committed, but {self._standing} stands")
        if data["fingerprint"] != self.fingerprint:
            self._say(seq, "the state committed is not that of the last savepoint kept")
        if self._turn.in_flight:
            self._say(seq, f"committed while calls {sorted(self._turn.in_flight)} were not settled")
        self.committed, self.committed_at = data, event["at"]

    def _inline_or_payload(self, seq: int, kind: type[T], inline: T | None, ref: Any) -> T | None:
        """The object or list an event holds or refers to; None, and a problem, when it is not to be had."""
        found = reference(ref)
        if inline is not None and ref is None:
            return inline
        if found is None:
            self._say(seq, "it holds neither its text nor one reference to it")
            return None
        name, size = found
        self._referenced.add(name)
        held = self.payloads.get(name)
        value = None if held is None or len(held) != size else _decoded(held)
        if isinstance(value, kind):
            return value
        self._say(seq, f"the payload {name} it refers to is missing, of another length, or no {kind.__name__}")
        return None


def _decoded(data: bytes) -> Any:
    """The JSON value in a payload, fractions and all; None when it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


_STEPS: Final = {
    "TaskAccepted": "_accept",
    "TurnStarted": "_start_turn",
    "TurnEnded": "_end_turn",
    "BudgetRaised": "_raise",
    "ModelReplied": "_replied",
    "ModelFailed": "_charge",
    "Authorized": "_authorized",
    "Refused": "_refused",
    "ToolIntent": "_intent",
    "ToolResult": "_result",
    "ChangesObserved": "_observed",
    "EvidenceRecorded": "_evidence",
    "DeltaMeasured": "_measured",
    "SavepointKept": "_kept",
    "RolledBack": "_rolled_back",
    "ApprovalRequested": "_asked",
    "ApprovalSigned": "_signed",
    "ApprovalResolved": "_resolved",
    "ClaimRejected": "_claim_rejected",
    "CommitPlanned": "_plan",
    "Committed": "_commit",
    "DriftFound": "_drift",
}

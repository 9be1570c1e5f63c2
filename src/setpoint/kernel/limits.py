"""Every bound, and where its number came from (law L7).

A bound that a user may want to move is in the manifest; these are the runtime's own. Each has its reason right below
it, and a test that holds it to that.
"""

from __future__ import annotations

from typing import Final

# Log

INLINE_BYTES_MAX: Final = 1024
"""A text up to this size lies in its event; a longer one is a content-addressed payload (keeps 2.5 KB a turn)."""
CHECKPOINT_EVERY_TURNS: Final = 50
"""Resume folds at most this many turns. A crash costs folding them anew (0.03 ms each, measured), not doing them anew;
at 1 ms a checkpoint and 1,200 turns between crashes `figures.checkpoint_cadence_s` gives 283 turns. Fewer cost 20 us a
turn and keep a resume within 2 ms."""
LEASE_TTL_MS: Final = 15_000
"""Longer than the longest gap between renewals (5 s) plus clock skew; a dead local owner is taken over at once."""
LEASE_RENEW_MS: Final = 5_000
"""A third of the time to live, so that two renewals in a row may fail before the lease is lost."""

# Proposals

PROPOSAL_BYTES_MAX: Final = 1 << 20
"""A reply above 1 MiB is refused unparsed: ten times the largest useful edit."""
CALLS_PER_PROPOSAL_MAX: Final = 16
"""More than models are seen to propose at once (up to eight); each costs a ruling and several events."""
ARGUMENT_DEPTH_MAX: Final = 32
"""The built-in tools nest two levels deep; walking arguments recurses, and this keeps it far from Python's limit."""
MODEL_CALL_MS_MAX: Final = 120_000
"""Deadline of one model call unless the wall budget ends sooner."""
ROUTE_RETRIES_MAX: Final = 2
"""Transient failures of a route in a row before the next route is taken."""
BACKOFF_MS_BASE: Final = 500
"""First pause after a transient failure; it doubles with each further one."""
BACKOFF_MS_MAX: Final = 30_000
"""Longest pause of our own choosing: beyond half a minute another route serves the task better."""
RETRY_AFTER_MS_MAX: Final = 300_000
"""Longest pause a server may ask for, five minutes: several rate windows. For a longer one the next route is taken."""

# Progress

REPEAT_MAX: Final = 3
"""The third identical (action, state, outcome) is refused: the same on the same cannot end otherwise."""
RATE_CALLS_MAX: Final = 60
"""Calls a rate may allow in its window: one a second a minute. The record keeps as many times, 8 bytes each."""
RECENT_ACTIONS_MAX: Final = 24
"""Calls looked back on for repetition: eight rounds of a three-call loop, and about 3 KB of the record."""
BLOCKED_MAX: Final = 256
"""Rolled-back proposals remembered: more than any budget of turns so far, and 18 KB of the record at most."""
NOTES_MAX: Final = 6
"""Notes in a prompt: one for each of the last attempts that a stall tier looks at."""
NOTE_CHARS_MAX: Final = 600
"""A note names what failed, about 150 tokens; six of them stay under a thousand."""
REFUSALS_IN_A_ROW_MAX: Final = 6
"""Turns in a row in which nothing was permitted before the route counts as stalled."""
IDLE_TURNS_MAX: Final = 8
"""Turns in a row without a mutation, claim or question (reads only) before a steer; twice that is a stall."""

# Effects outside the workspace

EFFECT_ATTEMPTS_MAX: Final = 6
"""Sendings of one request that surely had no effect so far: five doubling pauses ride out 15 to 31 s of outage."""
EFFECT_PAUSE_MS_FIRST: Final = 1_000
"""A refused connection or a restart of the other side is seldom over sooner, and a person does not notice."""
EFFECT_PAUSE_MS_MAX: Final = 60_000
"""Longest pause of our own choosing. It is a timer in the log and holds no worker. A server may ask for more."""
BREAKER_FAILURES: Final = 5
"""Transport failures in a row: at 2 % lost replies five happen by chance once in three hundred million calls."""
BREAKER_OPEN_MS: Final = 30_000
"""What a dependency usually needs for a restart behind its balancer; each probe after it costs at most one call."""
HTTP_TIMEOUT_MS: Final = 10_000
"""From request to whole answer: a payment service's slowest percentile takes a few seconds."""
HTTP_CONNECT_MS: Final = 3_000
"""Until a connection stands: one lost SYN is sent again after a second, a second one two seconds later."""
HTTP_ANSWER_BYTES_MAX: Final = 1 << 20
"""A receipt has a few hundred bytes; an answer above 1 MiB is not one, and must not fill the worker's memory."""
HTTP_REASON_CHARS_MAX: Final = 300
"""Of the other side's words in a fault: enough for its error code and sentence, not for a page of HTML."""
HTTP_RETRY_AFTER_MS_MAX: Final = 86_400_000
"""A day. A server that asks for more means something else, and a person looks before that."""

# Projection

MAP_ENTRIES_MAX: Final = 200
"""Entries of the workspace map: about 2,000 tokens, a twelfth of a prompt; the model can list directories for more."""
OBSERVATIONS_IN_PROMPT_MAX: Final = 4
"""Recent observations shown: as many as turn 5 can have, so that turn 50 has no more (R040)."""
FILES_IN_PROMPT_MAX: Final = 4
"""Working files shown afresh every turn: what one change usually touches, and no more at turn 50 than at 5 (R040)."""
FILE_IN_PROMPT_CHARS_MAX: Final = 12_000
"""Characters of one working file: 3,000 tokens, about 300 lines; four of them fill half a prompt."""
FILE_READ_BYTES_MAX: Final = 1 << 20
"""A file read into memory for a prompt, a read or an edit; equal to the largest reply, which could not say more."""
CHARS_PER_TOKEN: Final = 4
"""Estimate for projected budgets only: about 4 bytes a token for English and code; usage comes from the provider."""
PROMPT_TOKENS_MAX: Final = 24_000
"""Default bound of a prompt when the route does not name a smaller window."""

# Evidence

DIAGNOSTICS_IN_RESULT_MAX: Final = 10
"""More than one turn repairs; the text says the rest."""
FAILURES_RECORDED_MAX: Final = 20
"""Failing items of one check in its event; the distance counts them all."""
FAILURE_CHARS_MAX: Final = 500
"""Characters of one failure message or reason: an assertion with its two values."""
FAILURES_IN_RECORD_MAX: Final = 8
"""Enough for a prompt; the rest is in the log."""
PATHS_RECORDED_MAX: Final = 50
"""Changed paths listed with a savepoint or commit, for people; the exact change set is an event of its own."""
CHECK_OUTPUT_BYTES_MAX: Final = 256 * 1024
"""Output of a check that is kept for its parser: a report of some thousand tests."""

# Budget stages, in thousandths

STAGE_STEER: Final = 700
"""From here the prompt asks for the smallest change that finishes; a request, not a guarantee."""
STAGE_RESTRICT: Final = 900
"""From here only reads, questions and the claim are permitted; a guarantee."""

# Approvals

APPROVAL_SKEW_MS: Final = 30_000
"""How far an approver's clock may be off: clocks that are kept differ by less than a second, a laptop that just woke
by some. Every approval lives for minutes at least, so half a minute opens no door."""
APPROVAL_SEATS_MAX: Final = 100
"""People one action may need, and roles it may name: what a manifest allows; rules in use ask for two or three."""
APPROVAL_REASON_CHARS_MAX: Final = 1_000
"""A reason is a few sentences; it goes into the log and to the model."""
APPROVAL_TICKET_BYTES_MAX: Final = 16 << 20
"""A ticket read from outside: the largest proposal (1 MiB) as arguments and preview, all of it escaped sixfold."""
SIGNED_DECISION_BYTES_MAX: Final = 16 * 1024
"""The longest reason escaped sixfold, an SSH signature (some 400 bytes) and names leave half of this unused."""
SSH_SIGN_MS_MAX: Final = 120_000
"""Time for a person to touch a hardware key or type a passphrase, twice over."""

# Runs

RUN_CHECKPOINT_EVENTS: Final = 200
"""Taking up a run folds at most so many events, about 2 ms; spread over them a snapshot costs next to nothing."""
REASON_CHARS_MAX: Final = 2_000
"""Of what an author's code or the other side says of a failure: a sentence and some of its data; it is kept for good,
and the record of the run holds it, too."""
MESSAGE_BYTES_MAX: Final = 64 * 1024
"""A signal, a late result or a settlement in an inbox; what is longer is kept elsewhere and named."""
EFFECT_SKEW_MS: Final = 25
"""Between our clock and another's on one network, as the worked example of a lease has it (2,155 ms)."""
MAP_ITEMS_MAX: Final = 1_000
"""Rounds of one map: its record holds a cursor for each that has begun, 40 bytes, and is folded with every event."""

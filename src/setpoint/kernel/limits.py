"""Every bound, and where its number came from (law L7).

A bound that a user may want to move is in the manifest; these are the runtime's own.
"""

from __future__ import annotations

from typing import Final

# Log
INLINE_BYTES_MAX: Final = 1024
"""A text up to this size lies in its event; a longer one is a content-addressed payload (keeps 2.5 KB a turn)."""
CHECKPOINT_EVERY_TURNS: Final = 50
"""Resume folds at most this many turns after a checkpoint; sqrt(2*cost*mtbf) at 1 ms cost, 20 min mtbf is ~50 s."""
LEASE_TTL_MS: Final = 15_000
"""Longer than the longest gap between renewals (5 s) plus clock skew; a dead local owner is taken over at once."""
LEASE_RENEW_MS: Final = 5_000

# Proposals
PROPOSAL_BYTES_MAX: Final = 1 << 20
"""A reply above 1 MiB is refused unparsed: ten times the largest useful edit."""
CALLS_PER_PROPOSAL_MAX: Final = 16
ARGUMENT_DEPTH_MAX: Final = 32
MODEL_CALL_MS_MAX: Final = 120_000
"""Deadline of one model call unless the wall budget ends sooner."""
ROUTE_RETRIES_MAX: Final = 2
"""Transient failures of a route in a row before the next route is taken."""
BACKOFF_MS_BASE: Final = 500
BACKOFF_MS_MAX: Final = 30_000

# Progress
REPEAT_MAX: Final = 3
"""The third identical (action, state, outcome) is refused (CASES C1)."""
RECENT_ACTIONS_MAX: Final = 24
BLOCKED_MAX: Final = 256
NOTES_MAX: Final = 6
NOTE_CHARS_MAX: Final = 600
REFUSALS_IN_A_ROW_MAX: Final = 6
"""Turns in a row in which nothing was permitted before the route counts as stalled."""
IDLE_TURNS_MAX: Final = 8
"""Turns in a row without a mutation, claim or question (reads only) before a steer; twice that is a stall."""

# Projection
MAP_ENTRIES_MAX: Final = 200
OBSERVATIONS_IN_PROMPT_MAX: Final = 6
FILES_IN_PROMPT_MAX: Final = 6
FILE_IN_PROMPT_CHARS_MAX: Final = 12_000
FILE_READ_BYTES_MAX: Final = 1 << 20
CHARS_PER_TOKEN: Final = 4
"""Estimate for projected budgets only: about 4 bytes a token for English and code; usage comes from the provider."""
PROMPT_TOKENS_MAX: Final = 24_000
"""Default bound of a prompt when the route does not name a smaller window."""
OUTPUT_TOKENS_RESERVE: Final = 4_096
"""Worst-case reply reserved before a call when the route does not say."""

# Evidence
FAILURES_RECORDED_MAX: Final = 20
FAILURE_CHARS_MAX: Final = 500
FAILURES_IN_RECORD_MAX: Final = 8
"""Enough for a prompt; the rest is in the log."""
PATHS_RECORDED_MAX: Final = 50
CHECK_OUTPUT_BYTES_MAX: Final = 256 * 1024

# Budget stages (DEFINITIONS 12), in thousandths
STAGE_STEER: Final = 700
STAGE_RESTRICT: Final = 900
STAGE_HALT: Final = 1000

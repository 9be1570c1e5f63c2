"""Numbers that pages quote are those of the code."""

from __future__ import annotations

import re

import pytest
from tests.docs.repository import DOCS, ROOT

from setpoint.adapters.verifiers import exhaustive, oracle
from setpoint.adapters.workspaces import commit
from setpoint.cli.grammar import ABSENT, EXIT_CODES
from setpoint.kernel import exposure, limits
from setpoint.kernel.contract import Level

HOW_TO = DOCS / "how-to"
QUOTED = [
    (ROOT / "ARCHITECTURE.md", "A checkpoint of the record every {} turns", limits.CHECKPOINT_EVERY_TURNS),
    (ROOT / "ARCHITECTURE.md", "Texts over {} KiB", limits.INLINE_BYTES_MAX // 1024),
    (HOW_TO / "seal-a-check.md", "up to {:,}", oracle.CASES_MAX),
    (HOW_TO / "seal-a-check.md", "at most {:,} inputs", exhaustive.INPUTS_MAX),
    (HOW_TO / "choose-evidence.md", "fewer than {} turns", exposure.HORIZON_SEALED),
    (HOW_TO / "choose-evidence.md", "{} turns or more", exposure.HORIZON_SEALED),
    (HOW_TO / "choose-evidence.md", "Between {} and", exposure.HORIZON_LONG + 1),
    (HOW_TO / "write-a-task.md", "Above {} % the model", limits.STAGE_STEER // 10),
    (HOW_TO / "write-a-task.md", "above {} % only", limits.STAGE_RESTRICT // 10),
]


@pytest.mark.parametrize(("page", "sentence", "number"), QUOTED, ids=[sentence for _, sentence, _ in QUOTED])
def test_a_quoted_bound_is_the_codes(page, sentence: str, number: int) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert sentence.format(number) in text


def test_bounds_quoted_in_words_are_the_codes() -> None:
    assert (commit.KEPT_COMMITS, commit.KEPT_DAYS, commit.KEPT_BYTES) == (20, 14, 1 << 30)
    assert limits.ROUTE_RETRIES_MAX + 1 == 3, "docs/how-to/models.md says three times"
    assert limits.REPEAT_MAX == 3, "docs/explanation/loop.md says the third time"


def test_the_readme_lists_every_exit_code_and_level() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Exit codes")[2].partition("##")[0]
    assert {int(code) for code in re.findall(r"\| (\d+) \|", table)} == set(EXIT_CODES)
    assert " < ".join(level.label for level in Level) in readme


def test_the_readme_names_no_verb_that_is_absent_as_if_it_were_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [verb for verb in ABSENT if re.search(rf"setpoint {verb}\b", readme)]

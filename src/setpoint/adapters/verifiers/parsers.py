"""Read a check's report. Pure: bytes in, counts and failing items out.

A report was written next to, or inside, a process that ran the candidate's code: it is untrusted data. Each parser
reads a bounded size, expands no entity, and raises ``ReportUnreadable`` for whatever it cannot take literally. A
report that contradicts itself is unreadable, not "probably fine". The human-readable output of a tool is never parsed
for a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.parsers import expat

import msgspec

from setpoint.kernel.evidence import Counts, Failure
from setpoint.kernel.limits import FAILURE_CHARS_MAX, FAILURES_RECORDED_MAX

REPORT_BYTES_MAX: Final = 8 << 20
"""About 40,000 test cases in JUnit form; what is larger should be split into several criteria."""
XML_DEPTH_MAX: Final = 32
"""Real reports nest suites three deep; a deeper document only serves to exhaust the reader."""
COLLECTION_FAILURE: Final = "collection failure"
"""pytest's own wording in the JUnit file for a test module that could not be imported."""


class ReportUnreadable(ValueError):
    """The report is absent in substance: malformed, oversized, truncated or contradicting itself."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a parser counted. ``failing`` items are failures plus errors; ``failures`` lists the first of them."""

    counts: Counts
    failures: tuple[Failure, ...]

    @property
    def failing(self) -> int:
        return self.counts.failed + self.counts.errors

    @property
    def ran(self) -> int:
        return self.counts.collected - self.counts.skipped


def clip(text: str, chars_max: int = FAILURE_CHARS_MAX) -> str:
    """``text`` without control characters, cut at ``chars_max`` with the cut shown."""
    clean = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text.strip())
    return clean if len(clean) <= chars_max else clean[: chars_max - 1] + "…"


def bounded(failures: list[Failure]) -> tuple[Failure, ...]:
    """The first failures, each clipped, as evidence records them."""
    return tuple(Failure(clip(f.name), clip(f.message)) for f in failures[:FAILURES_RECORDED_MAX])


# JUnit


def parse_junit(data: bytes) -> Report:
    """Count the test cases of a JUnit file, pytest's or another tool's.

    Counts come from the cases, not from a suite's attributes: tools disagree on what those include. A module that
    could not be imported counts as an error and not as a collected test. Two adjacent entries of one name are one test
    that failed twice (pytest writes a failing teardown that way).
    """
    if len(data) > REPORT_BYTES_MAX:
        raise ReportUnreadable(f"the junit report has {len(data)} bytes, above the limit of {REPORT_BYTES_MAX}")
    root = _read_xml(data)
    if root.tag not in ("testsuites", "testsuite"):
        raise ReportUnreadable(f"the junit report's root is <{clip(root.tag, 60)}>, not <testsuites> or <testsuite>")
    collected = passed = failed = errors = skipped = 0
    failures: list[Failure] = []
    for name, outcome, message in _merge_double_entries(_cases(root)):
        uncollected = outcome == "error" and message.startswith(COLLECTION_FAILURE)
        collected += not uncollected
        match outcome:
            case "passed":
                passed += 1
            case "skipped":
                skipped += 1
            case "failure":
                failed += 1
                failures.append(Failure(name, message))
            case _:
                errors += 1
                failures.append(Failure(name, message))
    return Report(Counts(collected, passed, failed, errors, skipped), bounded(failures))


def _read_xml(data: bytes) -> Element:
    """Parse without a DTD, hence without entities to expand or fetch, and with bounded nesting."""
    builder = TreeBuilder()
    depth = 0

    def refuse_doctype(*_: object) -> None:
        raise ReportUnreadable("the junit report carries a document type declaration, which is never read")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > XML_DEPTH_MAX:
            raise ReportUnreadable(f"the junit report nests deeper than {XML_DEPTH_MAX} elements")
        builder.start(tag.rpartition("}")[2], attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag.rpartition("}")[2])

    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(data, True)
        return builder.close()
    except (expat.ExpatError, ParseError, AssertionError, ValueError, LookupError) as fault:
        if isinstance(fault, ReportUnreadable):
            raise
        raise ReportUnreadable(f"the junit report is not well-formed XML: {clip(str(fault), 200)}") from fault


def _cases(root: Element) -> Iterator[tuple[str, str, str]]:
    """(name, outcome, message) of each test case in document order."""
    for case in root.iter("testcase"):
        classname, name = case.get("classname", ""), case.get("name", "")
        full = f"{classname}::{name}" if classname else name
        worst, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                worst, message = child.tag, _message_of(child)
                break
            if child.tag == "skipped":
                worst = "skipped"
        yield full or "(unnamed)", worst, message


def _message_of(node: Element) -> str:
    """The short message; for a failed import also the exception, which pytest puts at the end of the body."""
    message = node.get("message") or ""
    body = node.text or ""
    if message == COLLECTION_FAILURE:
        raised = [line[1:].strip() for line in body.splitlines() if line.startswith("E  ")]
        return f"{COLLECTION_FAILURE}: {raised[-1]}" if raised else COLLECTION_FAILURE
    return message or next((line for line in reversed(body.splitlines()) if line.strip()), "")


def _merge_double_entries(cases: Iterator[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    previous: tuple[str, str, str] | None = None
    for case in cases:
        if previous is not None and case[0] == previous[0] and case[1] == "error" and previous[1] != "error":
            if previous[1] != "failure":
                previous = case
            continue
        if previous is not None:
            yield previous
        previous = case
    if previous is not None:
        yield previous


# TAP 13 and 14

_TAP_PLAN = re.compile(r"1\.\.(\d{1,9})(?:\s*#.*)?$")
_TAP_POINT = re.compile(r"(not )?ok\b(?:\s+(\d{1,9}))?(?:\s+-)?\s*(.*)$")
_TAP_DIRECTIVE = re.compile(r"(?<!\\)#\s*(skip|todo)\b", re.IGNORECASE)


def parse_tap(data: bytes) -> Report:
    """Count the top-level test points of TAP 13 or 14 output.

    Subtests and YAML blocks are indented and only their parent's point counts. A plan is required and must match;
    ``Bail out!`` means that the run was given up.
    """
    if len(data) > REPORT_BYTES_MAX:
        raise ReportUnreadable(f"the TAP output has {len(data)} bytes, above the limit of {REPORT_BYTES_MAX}")
    plan: int | None = None
    seen: set[int] = set()
    passed = failed = skipped = 0
    failures: list[Failure] = []
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith("Bail out!"):
            raise ReportUnreadable(f"the run was given up: {clip(line, 200)}")
        if match := _TAP_PLAN.match(line):
            if plan is not None:
                raise ReportUnreadable("the TAP output holds two plans")
            plan = int(match[1])
        elif match := _TAP_POINT.match(line):
            number = int(match[2]) if match[2] else len(seen) + 1
            if number in seen:
                raise ReportUnreadable(f"TAP test point {number} is reported twice")
            seen.add(number)
            description, directive = _split_directive(match[3])
            if directive == "skip" or (directive == "todo" and match[1]):
                skipped += 1
            elif match[1]:
                failed += 1
                failures.append(Failure(description or f"test {number}", ""))
            else:
                passed += 1
    if plan is None:
        raise ReportUnreadable("the TAP output has no plan (1..N), so tests may have been lost")
    if len(seen) != plan or (seen and (min(seen) < 1 or max(seen) > plan)):
        raise ReportUnreadable(f"the TAP plan announces {plan} tests and {len(seen)} were reported")
    return Report(Counts(plan, passed, failed, 0, skipped), bounded(failures))


def _split_directive(text: str) -> tuple[str, str]:
    if match := _TAP_DIRECTIVE.search(text):
        return text[: match.start()].strip(), match[1].lower()
    return text.strip(), ""


# JSON


class _JsonFailure(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    message: str = ""


class _JsonReport(msgspec.Struct, forbid_unknown_fields=True):
    passed: int
    failed: int
    failures: list[_JsonFailure] = []


JSON_FORM: Final = '{"passed": 3, "failed": 1, "failures": [{"name": "n", "message": "m"}]}'
"""Also said in the manifest's description of ``parse`` and wherever a report does not fit."""


def parse_json(data: bytes) -> Report:
    """Read what ``JSON_FORM`` shows and nothing else; ``failures``, and a ``message`` in them, may be left out."""
    if len(data) > REPORT_BYTES_MAX:
        raise ReportUnreadable(f"the JSON report has {len(data)} bytes, above the limit of {REPORT_BYTES_MAX}")
    try:
        report = msgspec.json.decode(data, type=_JsonReport)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as fault:
        raise ReportUnreadable(
            f"the JSON report does not fit its form, {JSON_FORM}: {clip(str(fault), 200)}"
        ) from fault
    if report.passed < 0 or report.failed < 0:
        raise ReportUnreadable(f"the JSON report counts {report.passed} passed and {report.failed} failed")
    if len(report.failures) > report.failed:
        raise ReportUnreadable(f"the JSON report names {len(report.failures)} failures and counts {report.failed}")
    failures = [Failure(f.name, f.message) for f in report.failures]
    counts = Counts(report.passed + report.failed, report.passed, report.failed, 0, 0)
    return Report(counts, bounded(failures))


def last_line(data: bytes) -> bytes:
    """The last line that holds anything."""
    return next((line for line in reversed(data.splitlines()) if line.strip()), b"")

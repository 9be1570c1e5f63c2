"""`setpoint explain workflow NAME`: words, proof and pictures of a definition (issue 3 item 2)."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings

from setpoint.app.chart import COLOURS, duration
from setpoint.app.picture import mermaid, svg
from setpoint.app.workflow_text import explain_workflow
from setpoint.kernel.flow import (
    Approval,
    ApprovalTerms,
    Branch,
    Child,
    Definition,
    Judge,
    Map,
    Parallel,
    Repeat,
    Sleep,
    Use,
    WaitFor,
    walk,
)

from .definitions import OPS, branch, call, definition, definitions, step, wire

NS = "{http://www.w3.org/2000/svg}"
BOTH = ApprovalTerms(by=("finance", "legal"), each_role=True)
WHOLE = definition(
    call("load", "read"),
    Judge(name="tone", instructions="Is it angry?", into="t", labels=("angry", "calm")),
    Branch(
        name="decision",
        cases={
            "APPROVED": (
                Approval(name="ask", terms=BOTH, of="w/decision/APPROVED/wire"),
                call("reserve", "compensable"),
                wire(approval=None),
            ),
            "REJECTED": (Sleep(name="nap", ms=90_000), WaitFor(name="answer", signal="said", timeout_ms=3_600_000)),
        },
    ),
    Parallel(name="both", branches={"mail": (call("mail", "keyed"),), "books": (call("book", "reversible"),)}),
    Map(
        name="lines",
        item="line",
        at_most=100,
        at_once=8,
        body=(Repeat(name="poll", at_most=5, body=(step("look"),)),),
    ),
    Child(name="ship", workflow="shipping", version=3, definition="d", effects=("read", "keyed")),
    Use(name="close", fragment="closing", body=(step("archive"),)),
    input={"properties": {"order": {}}},
    state={"properties": {"order": {}, "cents": {}}},
)


# Words


def test_the_explanation_shows_every_node_every_capability_and_every_line_of_the_proof():
    text = explain_workflow(WHOLE)
    assert text.startswith("workflow w, version 1\n")
    assert WHOLE.digest in text
    assert "takes       order\n" in text and "carries     order, cents\n" in text
    assert "may start   shipping (version 3)" in text
    for _, node in walk(WHOLE.body, "w"):
        assert f"{node.name}: " in text
    assert "wire: capability (irreversible · do_wire)" in text
    assert "do_reserve: compensable, derived key, compensator, timeout 30s" in text
    assert "it may start" in text and "BROKEN" not in text
    for name in ("boundary", "gates", "one pivot", "pivot last", "protocol", "approvals", "reachable"):
        assert re.search(rf"^  holds     {name}: ", text, re.MULTILINE), name
    assert "may end in EffectUnknown" in text
    assert max(map(len, text.splitlines()[6:])) <= 100


def test_the_explanation_of_a_broken_definition_shows_the_path_and_what_to_do():
    text = explain_workflow(definition(step("a"), branch("d", x=(wire(approval=None),), y=(step("b"),))))
    assert "1 breach, so it does not start" in text
    assert "BROKEN    gates" in text
    assert "w/a -> w/d -> w/d/x/wire" in " ".join(text.split())
    assert "-> Add .approval(" in text


def test_the_explanation_says_that_an_approval_is_conditional_and_what_was_not_tried():
    conditional = definition(wire(approval=ApprovalTerms(by=("ops",), is_conditional=True)))
    assert "holds if  gates" in explain_workflow(conditional)
    assert "not tried gates" in explain_workflow(definition(branch("d", x=())))


def test_very_many_ways_are_told_by_their_size():
    body = [branch(f"b{n}", x=(step("x"),), y=(step("y"),)) for n in range(400)]
    assert "about 10^120 ways through" in explain_workflow(definition(*body))


@pytest.mark.parametrize(
    ("ms", "text"), [(90_000, "90s"), (3_600_000, "1h"), (86_400_000, "1d"), (1_500, "1500ms"), (0, "0ms")]
)
def test_a_time_is_shown_in_its_largest_whole_unit(ms: int, text: str):
    assert duration(ms) == text


# Mermaid

NODE = re.compile(r'\s*(n\d+)(\["|\(\["|\{"|\[\["|\{\{")([^"]*)("\]|"\]\)|"\}|"\]\]|"\}\}):::(\w+)')
ARROW = re.compile(r'\s*(n\d+) -->(?:\|"([^"]*)"\|)? (n\d+)')
GROUP = re.compile(r'\s*subgraph g\d+\["([^"]*)"\]')
CLASS = re.compile(r"\s*classDef (\w+) fill:#[0-9a-f]{6},stroke:#[0-9a-f]{6},color:#111827(,stroke-dasharray:4 3)?")


def chart_of(found: Definition) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """The nodes and arrows of a chart, every line of which must be one of the forms above."""
    nodes: dict[str, str] = {}
    arrows: list[tuple[str, str, str]] = []
    depth = 0
    first, *lines = mermaid(found).splitlines()
    assert first == "flowchart TD"
    for line in lines:
        if match := NODE.fullmatch(line):
            assert match[1] not in nodes and match[5] in COLOURS
            nodes[match[1]] = match[3]
        elif match := ARROW.fullmatch(line):
            arrows.append((match[1], match[2] or "", match[3]))
        elif GROUP.fullmatch(line):
            depth += 1
        elif line.strip() == "end":
            depth -= 1
            assert depth >= 0
        else:
            assert CLASS.fullmatch(line), line
    assert depth == 0
    return nodes, arrows


def test_a_chart_has_an_arrow_for_every_way_from_node_to_node():
    nodes, arrows = chart_of(definition(step("a"), branch("d", x=(step("b"),), y=(step("c"), step("e"))), step("f")))
    named = [(nodes[one], label, nodes[other]) for one, label, other in arrows]
    assert named == [
        ("w", "", "a"),
        ("a", "", "d"),
        ("d", "x", "b"),
        ("d", "y", "c"),
        ("c", "", "e"),
        ("b", "", "f"),
        ("e", "", "f"),
        ("f", "", "end"),
    ]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(definitions())
def test_every_chart_is_well_formed_and_connected(found: Definition):
    nodes, arrows = chart_of(found)
    assert {end for one, _, other in arrows for end in (one, other)} == set(nodes)
    start, end = next(iter(nodes)), list(nodes)[-1]
    reached, before = {start}, 0
    while len(reached) > before:
        before = len(reached)
        reached |= {other for one, _, other in arrows if one in reached}
    assert reached == set(nodes) and end in reached


HOSTILE = [
    '"]:::x',
    "a --> b",
    "<script>alert(1)</script>",
    "end",
    "`x`",
    "subgraph",
    "&amp;#35;",
    "a\u0000b\u202ec",
    "%%{init}",
    "日本語",
]


def hostile(text: str) -> Definition:
    return definition(
        Branch(name="d", cases={text.replace("/", ""): (step("a"),), "x": (step("b"),)}),
        Use(name="u", fragment=text, body=(step("c"),)),
        WaitFor(name="w", signal=text, timeout_ms=1),
        wire(approval=ApprovalTerms(by=(text,))),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_is_read_as_syntax(text: str):
    nodes, _ = chart_of(hostile(text))
    assert len(nodes) == 8  # start, d, a, b, c, w, wire, end
    root = ElementTree.fromstring(svg(hostile(text)))
    assert {element.tag.removeprefix(NS) for element in root.iter()} <= {
        "svg", "title", "style", "defs", "marker", "path", "rect", "text", "g",
    }  # fmt: skip


# SVG


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    found: list[tuple[float, float, float, float]] = []
    for rect in root.iter(f"{NS}rect"):
        style = rect.get("class", "")
        if style.startswith("node") and "inner" not in style:
            found.append(tuple(float(rect.get(name, "0")) for name in ("x", "y", "width", "height")))  # type: ignore[arg-type]
    return found


def overlap(one: Any, other: Any) -> bool:
    return (
        one[0] < other[0] + other[2]
        and other[0] < one[0] + one[2]
        and one[1] < other[1] + other[3]
        and other[1] < one[1] + one[3]
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(definitions())
def test_no_two_boxes_overlap_and_everything_is_on_the_picture(found: Definition):
    root = ElementTree.fromstring(svg(found))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    drawn = boxes(root)
    for at, one in enumerate(drawn):
        assert one[0] >= 0 and one[0] + one[2] <= width and one[1] >= 0 and one[1] + one[3] <= height
        assert not any(overlap(one, other) for other in drawn[at + 1 :])
    for text in root.iter(f"{NS}text"):
        assert 0 <= float(text.get("x", "-1")) <= width
        assert 0 <= float(text.get("y", "-1")) <= height


def test_the_picture_has_a_title_a_legend_of_what_it_shows_and_both_grounds():
    text = svg(WHOLE)
    root = ElementTree.fromstring(text)
    assert root.find(f"{NS}title").text == "w, version 1"  # type: ignore[union-attr]
    shown = [element.text for element in root.iter(f"{NS}text")]
    for word in ("read", "keyed", "compensable", "irreversible", "reversible", "approval", "judge", "wait", "workflow"):
        assert word in shown
    assert "pure" not in shown
    for words in ("asks finance and legal", "sleeps 90s", "runs shipping, version 3", "a model picks: angry, calm"):
        assert words in shown
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text and "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_an_approval_has_a_double_border_and_a_long_name_is_cut_with_the_whole_in_its_tooltip():
    name = "n" * 64
    root = ElementTree.fromstring(svg(definition(Approval(name=name, terms=OPS), step("s"))))
    assert sum("approval" in (rect.get("class") or "") for rect in root.iter(f"{NS}rect")) == 3  # with the legend's
    assert any(name in (title.text or "") for title in root.iter(f"{NS}title"))
    assert not any(name in (text.text or "") for text in root.iter(f"{NS}text"))


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_text_can_be_read_on_every_box_on_a_light_and_on_a_dark_page():
    for fill, stroke, dark_fill, dark_stroke in COLOURS.values():
        assert _contrast("#111827", fill) >= 7 and _contrast("#4b5563", fill) >= 4.5
        assert _contrast("#e8eaed", dark_fill) >= 7 and _contrast("#a9b1bc", dark_fill) >= 4.5
        assert _contrast(stroke, "#ffffff") >= 3 and _contrast(dark_stroke, "#0e1014") >= 3

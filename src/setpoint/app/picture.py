"""A workflow as a picture: Mermaid text for pages that render it, SVG without any dependency for all others.

Both are drawn from the definition alone, so they show what may happen and nothing else. Top to bottom in the order of
the nodes; the cases of a branch and the blocks of a parallel stand side by side; what is repeated has a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from setpoint.app.chart import COLOURS, kind_of, mermaid, words_of
from setpoint.kernel.flow import AnyNode, Approval, Block, Branch, Child, Definition, Map, Parallel, Repeat, Use, walk

SHOWN_MAX: Final = 44
"""Characters of a line in a box; the whole text is in its tooltip."""


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Something ``width`` by ``height`` that is entered at its top middle and left at its bottom middle."""

    width: float
    height: float
    draw: Callable[[float, float], Iterator[str]]


GAP: Final = 26.0
MARGIN: Final = 24.0
LINE: Final = 17.0


def svg(definition: Definition) -> str:
    """A picture of its own: light or dark as the page is, with a title and a legend. Valid XML whatever the names."""
    body = _block(definition.body)
    title = f"{definition.name}, version {definition.version}"
    below = f"may call: {', '.join(definition.boundary) or 'nothing'}"
    legend = _legend(definition, max(body.width, 420.0))
    width = max(body.width, legend.width, _text_width(title, 18), _text_width(_cut(below, 80), 12), 240.0) + 2 * MARGIN
    top = MARGIN + 58
    foot = top + 22 + GAP + body.height + GAP + 22
    height = foot + 30 + legend.height + MARGIN
    middle = width / 2
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_xml(title)}">',
        f"<title>{_xml(title)}</title>",
        f"<style>{_style()}</style>",
        _TIP,
        '<rect class="ground" width="100%" height="100%" rx="8"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 16}">{_xml(title)}</text>',
        _text(MARGIN, MARGIN + 36, _cut(below, 80), "small", anchor="start", whole=below),
        *_pill(middle, top, "start"),
        *_arrow(middle, top + 22, top + 22 + GAP),
        *body.draw(middle - body.width / 2, top + 22 + GAP),
        *_arrow(middle, foot - GAP - 22, foot - 22),
        *_pill(middle, foot - 22, "end"),
        *legend.draw(MARGIN, foot + 30),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
)


def _style() -> str:
    light = [
        "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;font-size:13px;fill:#111827}",
        ".name{font-weight:600}.title{font-size:18px;font-weight:700}.small{font-size:12px;fill:#4b5563}",
        ".ground{fill:#ffffff}.line{fill:none;stroke:#6b7280;stroke-width:1.4}.tip{fill:#6b7280}",
        ".frame{fill:none;stroke:#9ca3af;stroke-width:1.2;stroke-dasharray:6 4}.bar{stroke:#6b7280;stroke-width:4}",
        ".label{font-size:12px;font-style:italic}.node{stroke-width:1.5}.wait{stroke-dasharray:4 3}",
    ]
    dark = [
        "text{fill:#e8eaed}.small{fill:#a9b1bc}.ground{fill:#0e1014}.line{stroke:#9aa2ae}.tip{fill:#9aa2ae}",
        ".frame{stroke:#5d6673}.bar{stroke:#9aa2ae}",
    ]
    for kind, (fill, stroke, dark_fill, dark_stroke) in COLOURS.items():
        light.append(f".{kind}{{fill:{fill};stroke:{stroke}}}")
        dark.append(f".{kind}{{fill:{dark_fill};stroke:{dark_stroke}}}")
    return "".join(light) + "@media(prefers-color-scheme:dark){" + "".join(dark) + "}"


def _block(block: Block) -> _Drawing:
    nodes = [_node(node) for node in block]
    if not nodes:
        return _Drawing(40.0, GAP, lambda x, y: _line(x + 20, y, y + GAP))
    width = max(node.width for node in nodes)
    height = sum(node.height for node in nodes) + GAP * (len(nodes) - 1)

    def draw(x: float, y: float) -> Iterator[str]:
        middle = x + width / 2
        for place, node in enumerate(nodes):
            if place:
                yield from _arrow(middle, y - GAP, y)
            yield from node.draw(middle - node.width / 2, y)
            y += node.height + GAP

    return _Drawing(width, height, draw)


def _node(node: AnyNode) -> _Drawing:
    match node:
        case Branch(cases=cases):
            return _fork(_diamond(node.name), cases)
        case Parallel(branches=branches):
            return _fork(_box(node), branches, bars=True)
        case Map(body=body) | Repeat(body=body) | Use(body=body):
            return _frame(node, _block(body))
        case _:
            return _box(node)


def _box(node: AnyNode) -> _Drawing:
    lines = (node.name, *words_of(node))
    width = max(120.0, *(_text_width(_cut(line), 13) + 32 for line in lines))
    height = LINE * len(lines) + 16

    def draw(x: float, y: float) -> Iterator[str]:
        kind = kind_of(node)
        yield f"<g><title>{_xml(', '.join(lines))}</title>"
        yield _rect(x, y, width, height, kind)
        if isinstance(node, Approval):  # a double border: here it stops for people
            yield _rect(x + 3.5, y + 3.5, width - 7, height - 7, f"{kind} inner", 4)
        if isinstance(node, Child):  # a bar on either side: there is more behind it
            for at in (x + 8, x + width - 8):
                yield f'<path class="node {kind}" d="M{at:.1f} {y:.1f}v{height:.1f}"/>'
        for number, line in enumerate(lines):
            yield _text(x + width / 2, y + 21 + LINE * number, _cut(line), "small" if number else "name")
        yield "</g>"

    return _Drawing(width, height, draw)


def _diamond(name: str) -> _Drawing:
    width, height = _text_width(_cut(name), 13) + 70, 46.0

    def draw(x: float, y: float) -> Iterator[str]:
        across, down = x + width / 2, y + height / 2
        yield f"<g><title>{_xml(name)}</title>"
        yield (
            f'<path class="node branch" d="M{across:.1f} {y:.1f}L{x + width:.1f} {down:.1f}'
            f'L{across:.1f} {y + height:.1f}L{x:.1f} {down:.1f}z"/>'
        )
        yield _text(across, down + 4.5, _cut(name), "name") + "</g>"

    return _Drawing(width, height, draw)


def _fork(head: _Drawing, blocks: dict[str, Block], *, bars: bool = False) -> _Drawing:
    """A node with blocks side by side below it, which come together again."""
    between, drop, rise = 28.0, 46.0, 22.0
    columns = [(label, _block(block)) for label, block in blocks.items()]
    widths = [max(column.width, 2 * _text_width(_cut(label, 24), 12) + 20) for label, column in columns]
    row = sum(widths) + between * (len(widths) - 1)
    width = max(row, head.width)
    deepest = max((column.height for _, column in columns), default=0.0)
    height = head.height + drop + deepest + rise

    def draw(x: float, y: float) -> Iterator[str]:
        middle = x + width / 2
        yield from head.draw(middle - head.width / 2, y)
        forked, joined = y + head.height + 14, y + height
        yield from _line(middle, y + head.height, forked)
        left = middle - row / 2
        centres = [middle]
        for (label, column), wide in zip(columns, widths, strict=True):
            centre = left + wide / 2
            centres.append(centre)
            yield from _arrow(centre, forked, y + head.height + drop)
            yield _text(centre + 7, forked + 17, _cut(label, 24), "label", anchor="start", whole=label)
            yield from column.draw(centre - column.width / 2, y + head.height + drop)
            yield from _line(centre, y + head.height + drop + column.height, joined)
            left += wide + between
        for at in (forked, joined):
            first, last = min(centres), max(centres)
            style = "bar" if bars else "line"
            yield f'<path class="{style}" d="M{first:.1f} {at:.1f}H{last:.1f}"/>'

    return _Drawing(width, height, draw)


def _frame(node: AnyNode, inner: _Drawing) -> _Drawing:
    title = ": ".join((node.name, *words_of(node)))
    width = max(inner.width + 36, _text_width(_cut(title), 13) + 32)
    head, foot = 30.0 + GAP / 2, 18.0
    height = head + inner.height + foot

    def draw(x: float, y: float) -> Iterator[str]:
        middle = x + width / 2
        yield f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
        yield _text(x + 12, y + 20, _cut(title), "name", anchor="start", whole=title)
        yield from _arrow(middle, y + 28, y + head)
        yield from inner.draw(middle - inner.width / 2, y + head)
        yield from _line(middle, y + height - foot, y + height)

    return _Drawing(width, height, draw)


def _legend(definition: Definition, width: float) -> _Drawing:
    used = {kind_of(node) for _, node in walk(definition.body, definition.name) if not _holds_blocks(node)}
    names = [kind for kind in COLOURS if kind in used]
    rows: list[list[str]] = [[]]
    taken = 0.0
    for name in names:
        wide = 40 + _text_width(name, 12)
        if rows[-1] and taken + wide > width:
            rows.append([])
            taken = 0.0
        rows[-1].append(name)
        taken += wide

    def draw(x: float, y: float) -> Iterator[str]:
        for row in rows:
            at = x
            for name in row:
                yield _rect(at, y, 16, 12, name, 3)
                yield _text(at + 22, y + 10.5, name, "small", anchor="start")
                at += 40 + _text_width(name, 12)
            y += 20

    return _Drawing(min(width, sum(40 + _text_width(name, 12) for name in names)), 20.0 * len(rows), draw)


def _holds_blocks(node: AnyNode) -> bool:
    return isinstance(node, (Branch, Parallel, Map, Repeat, Use))


# Marks


def _rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 6) -> str:
    return (
        f'<rect class="node {kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'
    )


def _text(x: float, y: float, text: str, style: str, *, anchor: str = "middle", whole: str = "") -> str:
    tip = f"<title>{_xml(whole)}</title>" if whole and whole != text else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{tip}{_xml(text)}</text>'


def _line(x: float, top: float, bottom: float) -> Iterator[str]:
    if bottom > top:
        yield f'<path class="line" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'


def _arrow(x: float, top: float, bottom: float) -> Iterator[str]:
    yield f'<path class="line" marker-end="url(#tip)" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'


def _pill(middle: float, y: float, text: str) -> Iterator[str]:
    yield _rect(middle - 30, y, 60, 22, "branch", 11)
    yield _text(middle, y + 15.5, text, "small")


def _cut(text: str, most: int = SHOWN_MAX) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text_width(text: str, size: int) -> float:
    """An upper estimate for the widest of the usual fonts: a label must not leave its box anywhere."""
    return size * sum(_advance(c) for c in text)


def _advance(c: str) -> float:
    if c in "iljI.,:;|!'()[] ·":
        return 0.42
    if c in "mwMW@%…" or ord(c) >= 0x1100:
        return 1.02
    return 0.76 if c.isupper() else 0.66


def _xml(text: str) -> str:
    """Escaped, without the characters that no XML may hold."""
    return escape("".join(c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF else " " for c in text))


__all__ = ["mermaid", "svg"]

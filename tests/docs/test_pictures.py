"""Whatever a picture of the documentation shows lies inside it, no words cover others, and a phone shows them large enough.

Words are measured in DejaVu Sans, the widest of the fonts that the pictures ask for.
"""

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

PICTURES = sorted((Path(__file__).parents[2] / "docs" / "pictures").glob("*.svg"))
MARGIN = 4
PHONE = 368  # of its 400 pixels the page leaves these to a picture


def extent_of_words(element):
    """Return left, top, right and bottom of a text."""
    x, y = (float(element.get(name)) for name in ("x", "y"))
    size = float(element.get("font-size", 20))
    font = FontProperties(family="DejaVu Sans", weight=element.get("font-weight", "normal"))
    width = float(
        element.get("textLength")
        or TextPath((0, 0), element.text, size, prop=font).get_extents().x1
    )
    left = x - width * {None: 0, "start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")]
    return left, y - 0.76 * size, left + width, y + 0.24 * size


def extents(element, dx=0.0, dy=0.0):
    """Yield what each element shows and where: left, top, right and bottom."""
    found = [float(number) for number in re.findall(r"[\d.]+", element.get("transform", ""))]
    dx, dy = (dx + found[0], dy + found[1]) if found else (dx, dy)
    kind, box = element.tag.rpartition("}")[2], None
    if kind == "text" and element.text.strip():
        box = extent_of_words(element)
    elif kind == "line":
        ends = {way: [float(element.get(f"{way}{end}")) for end in (1, 2)] for way in "xy"}
        box = min(ends["x"]), min(ends["y"]), max(ends["x"]), max(ends["y"])
    elif kind == "rect":
        x, y, width, height = (float(element.get(n, 0)) for n in ("x", "y", "width", "height"))
        box = x, y, x + width, y + height
    if box is not None:
        left, top, right, bottom = box
        shown = element.text.strip() if kind == "text" else kind
        yield shown, (left + dx, top + dy, right + dx, bottom + dy)
    if kind != "defs":
        for child in element:
            yield from extents(child, dx, dy)


def faults_of(svg):
    """Return what is cut off in a picture, words that leave their box, and words that cover others."""
    root = ET.fromstring(svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    (_, ground), *shown = extents(root)
    boxes = [box for what, box in shown if what == "rect"]
    words = [(what, box) for what, box in shown if what not in {"rect", "line"}]
    faults = []
    if ground[2] > width or ground[3] > height:
        faults.append("the ground is cut off")
    for what, (left, top, right, bottom) in shown:
        if left < MARGIN or top < MARGIN or right > width - MARGIN or bottom > height - MARGIN:
            faults.append(f"{what} is cut off")
    for what, (left, top, right, bottom) in words:
        middle = (left + right) / 2
        if bottom - top < 9 * max(1, width / PHONE):
            faults.append(f"{what} is too small for a phone")
        for box in boxes:
            is_in = box[0] < middle < box[2] and box[1] < bottom < box[3]
            if is_in and not box[0] + 2 < left < right < box[2] - 2:
                faults.append(f"{what} leaves its box")
    for (one, (l1, t1, r1, b1)), (other, (l2, t2, r2, b2)) in combinations(words, 2):
        if min(r1, r2) - max(l1, l2) > 1 and min(b1, b2) - max(t1, t2) > 1:
            faults.append(f"{one} and {other} cover each other")
    return faults


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_picture_shows_all_of_it(picture):
    assert faults_of(picture.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("drawn", "fault"),
    [
        ('<line x1="10" x2="101" y1="9" y2="9"/>', "line is cut off"),
        ('<rect x="10" y="10" width="80" height="45"/>', "rect is cut off"),
        ('<text x="95" y="20" font-size="9">word</text>', "word is cut off"),
        ('<text x="5" y="20" font-size="9" text-anchor="middle">word</text>', "word is cut off"),
        ('<text x="9" y="20" font-size="8">word</text>', "word is too small for a phone"),
        ('<g transform="translate(60, 9)"><text x="20" y="20">w</text></g>', None),
        ('<g transform="translate(60, 9)"><text x="30" y="20">w</text></g>', "w is cut off"),
        (
            '<rect x="9" y="9" width="9" height="30"/><text x="9" y="30">w</text>',
            "w leaves its box",
        ),
        ('<text x="9" y="25">w</text><text x="12" y="29">u</text>', "w and u cover each other"),
    ],
)
def test_fault_is_noticed(drawn, fault):
    svg = f'<svg viewBox="0 0 100 50"><rect width="100" height="50"/>{drawn}</svg>'
    assert faults_of(svg) == ([] if fault is None else [fault])

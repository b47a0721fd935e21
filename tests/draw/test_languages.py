"""Drawings as text: names are only text, whatever they are."""

import re
import shutil
import subprocess
from xml.etree import ElementTree as ET

import pytest

from hofunc.draw.boxes import Box, Sketch
from hofunc.draw.languages import as_dot, as_mermaid

NASTY = 'a"];evil[label="b\\n\\N\\" <b>&amp;</b> \n\x07 # %% `x` {y} |z| --> end; //'
NASTIES = Sketch(
    (NASTY, "1. & <title>"),
    (Box((NASTY,), "linear", 0.5), Box((NASTY, "<lambda>"), "fallback", region=3), Box(("end",), "constant", region=3)),
    ((0, 1, 1), (1, 2, 7)),
    {3: 2},
    (("no <rule>", "#dc2626"),),
)


def test_mermaid_has_no_sign_that_means_something() -> None:
    text = as_mermaid(NASTIES)
    boxes = re.findall(r'^ *(?:n\d|title)\["(.*)"\]$', text, re.MULTILINE)
    assert len(boxes) == 4
    for box in boxes:
        assert not set(box.replace("<br/>", "")) & set('"<>[]{}|`\\&\n\x07')
    assert "#60;lambda#62;" in text
    assert not re.search(r"#1?\d;", text), "what cannot be printed"
    assert re.findall(r"^  n\d -->.*$", text, re.MULTILINE) == ["  n0 --> n1", "  n1 -->|7| n2"]
    assert '  subgraph region3["2 times"]' in text.splitlines()
    assert text.count("\n  end\n") == 1


def test_dot_has_every_name_in_quotes() -> None:
    text = as_dot(NASTIES)
    labels = re.findall(r'^ *n\d \[label="((?:[^"\\]|\\.)*)", color=', text, re.MULTILINE)
    assert len(labels) == 3
    assert "\x07" not in text
    assert 'n1 -> n2 [label="7"]' in text
    assert labels[2] == "end"


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz draws")
def test_graphviz_shows_the_names() -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=as_dot(NASTIES).encode(), capture_output=True, check=True)  # noqa: S607
    assert done.stderr == b""
    svg = ET.fromstring(done.stdout)  # noqa: S314 - made here
    texts = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    shown = "".join(c if c.isprintable() else " " for c in NASTY)
    assert [" ".join(text.split()) for text in texts].count(" ".join(shown.split())) == 3
    assert "2 times" in texts
    assert "<lambda>" in texts

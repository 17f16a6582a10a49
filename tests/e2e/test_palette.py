"""Contrast of the colours in tokens.css, in both themes (WCAG 2.2: 1.4.3 text, 1.4.11 graphics)."""

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

CSS = (Path(__file__).resolve().parents[2] / "static" / "css" / "tokens.css").read_text()
TONES = ("good", "busy", "wait", "bad", "idle")


def theme(name: str) -> dict[str, str]:
    block = re.search(rf'\[data-bs-theme="{name}"\]\s*{{(.*?)}}', CSS, re.DOTALL)
    assert block
    return dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})\b", block[1]))


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def distance(one: str, other: str) -> float:
    """Return how different two colours look (OKLab): 0.02 is barely visible; black and white are
    1 apart."""
    places = []
    for colour in (one, other):
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        cones = (
            0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
            0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
            0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
        )
        light, medium, short = (cone ** (1 / 3) for cone in cones)
        places.append(
            (
                0.2104542553 * light + 0.7936177850 * medium - 0.0040720468 * short,
                1.9779984951 * light - 2.4285922050 * medium + 0.4505937099 * short,
                0.0259040371 * light + 0.7827717662 * medium - 0.8086757660 * short,
            )
        )
    return math.dist(*places)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(params=["light", "dark"])
def colours(request) -> dict[str, str]:
    return theme(request.param)


def test_lines_of_charts_stand_out_from_their_surface(colours):
    lines = [f"--chart-{i}" for i in range(1, 7)]
    lines += ["--chart-own", "--chart-borrowed", "--chart-guaranteed", "--chart-idle"]
    low = {
        n: round(contrast(colours[n], colours["--chart-surface"]), 2)
        for n in lines
        if contrast(colours[n], colours["--chart-surface"]) < 3
    }
    assert low == {}


def test_idle_and_full_nodes_are_told_apart_from_partly_used_ones(colours):
    assert contrast(colours["--chart-idle"], colours["--chart-full"]) >= 3
    ramp = [luminance(colours[f"--chart-part-{i}"]) for i in range(1, 8)]
    assert ramp in (sorted(ramp), sorted(ramp, reverse=True)), "the ramp must be monotone"
    assert contrast(colours["--chart-part-7"], colours["--chart-full"]) >= 3


def test_neighbouring_steps_are_told_apart(colours):
    """Nodes that differ by one free GPU have a contrast of at least 1.25, also full ones. In the
    dark theme, nodes with one to three free GPUs once were as brown as full ones were grey."""
    steps = ["--chart-full", *(f"--chart-part-{i}" for i in range(1, 8))]
    near = {
        pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in pairwise(steps)
    }
    assert {pair: found for pair, found in near.items() if found < 1.25} == {}


# Colours that appear side by side in a map, a bar, or a chart with several series.
BESIDE = [
    ("full", "part-1"), ("part-7", "idle"), ("idle", "full"), ("out", "full"), ("idle", "out"),
    ("own", "lent"), ("lent", "unused"), ("own", "unused"), ("own", "borrowed"),
    ("lent", "borrowed"), ("unused", "borrowed"), ("unused", "surface"), ("full", "surface"),
    *((str(i), str(i + 1)) for i in range(1, 6)),
]  # fmt: skip


def test_what_stands_beside_each_other_looks_different(colours):
    alike = {
        pair: round(distance(*(colours[f"--chart-{name}"] for name in pair)), 3)
        for pair in BESIDE
        if distance(*(colours[f"--chart-{name}"] for name in pair)) < 0.06
    }
    assert alike == {}
    assert distance("#000000", "#ffffff") == pytest.approx(1, abs=1e-3)


def test_texts_are_legible_on_their_grounds(colours):
    grounds = ("--kant-page", "--kant-surface", "--kant-sunken")
    pairs = [
        *((f"--kant-{ink}", ground) for ink in ("ink", "ink-soft", "accent") for ground in grounds),
        *((f"--kant-{tone}", f"--kant-{tone}-tint") for tone in TONES),
        *((f"--kant-{tone}", "--kant-surface") for tone in TONES),
        ("--kant-accent-strong", "--kant-accent-tint"),
        ("--kant-on-accent", "--kant-accent"),
        ("--chart-ink-soft", "--chart-surface"),
    ]
    low = {p: contrast(colours[p[0]], colours[p[1]]) for p in pairs}
    assert {p: round(c, 2) for p, c in low.items() if c < 4.5} == {}


def test_fields_and_buttons_have_a_visible_edge(colours):
    for ground in ("--kant-surface", "--kant-page"):
        assert contrast(colours["--kant-line-strong"], colours[ground]) >= 3


def test_both_themes_name_the_same_colours():
    assert theme("light").keys() == theme("dark").keys()

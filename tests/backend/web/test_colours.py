"""The colours of runs: told apart by everybody, in both themes."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from logclient_backend.collector.web.static_files import StaticFiles

# How the three kinds of colour blindness see linear RGB (Machado, Oliveira, Fernandes 2009, severity 1).
SEEN = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
APART = 0.1  # in OKLab; 0.02 can just be told apart side by side
CONTRAST = 3.0  # WCAG 2.1, 1.4.11
TEXT_CONTRAST = 4.5  # 1.4.3
Three = tuple[float, float, float]


def _theme(name: str) -> dict[str, Three]:
    """Linear RGB by name."""
    text = StaticFiles().files["style/tokens.css"].body.decode()
    light, _, dark = text.partition(':root[data-theme="dark"]')
    found = {"light": light, "dark": dark}[name]
    return {name: _linear(value) for name, value in re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", found)}


def _linear(colour: str) -> Three:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return red, green, blue


def _seen(colour: Three, kind: str) -> Three:
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True)))) for row in SEEN[kind]
    )
    return red, green, blue


def _oklab(colour: Three) -> Three:
    red, green, blue = colour
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _contrast(one: Three, other: Three) -> float:
    low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", SEEN)
def test_any_two_lines_can_be_told_apart(theme: str, kind: str) -> None:
    """Also by those who are blind to a colour."""
    found = _theme(theme)
    seen = {name: _oklab(_seen(found[name], kind)) for name in found if name.startswith("series-")}
    assert len(seen) == 8
    nearest = min(itertools.combinations(seen, 2), key=lambda pair: math.dist(seen[pair[0]], seen[pair[1]]))
    assert math.dist(seen[nearest[0]], seen[nearest[1]]) >= APART, nearest


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_texts_stand_out_from_the_paper(theme: str) -> None:
    """Both themes keep the contrasts of WCAG 2.1 AA."""
    found = _theme(theme)
    paper = found["paper"]
    assert [
        name for name in found if name.startswith("series-") and _contrast(found[name], paper) < CONTRAST
    ] == []
    texts = ("ink", "ink-dim", "accent", "good", "warn", "bad")
    grounds = ("paper", "panel")
    low = [(t, g) for t in texts for g in grounds if _contrast(found[t], found[g]) < TEXT_CONTRAST]
    assert low == []

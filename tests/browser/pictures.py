"""Pictures of pages, in both themes and at both widths, for whoever looks at them.

    PICTURES=build/pictures pytest tests/browser -k pictures

Without the variable they land in the test's own folder. Tests compare boxes of elements, never pixels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page

SIZES = ((1280, 800), (1920, 1080))
THEMES = ("light", "dark")


def take(page: Page, name: str, folder: Path) -> Iterator[str]:
    """Take four pictures of the page as it is now; yields the name of each, for checks of that width and theme."""
    kept = Path(os.environ.get("PICTURES", "") or folder)
    kept.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.evaluate("(theme) => (document.documentElement.dataset.theme = theme)", theme)
            page.wait_for_timeout(50)  # two frames
            page.screenshot(path=str(kept / f"{name}-{width}-{theme}.png"))
            yield f"{name}-{width}-{theme}"

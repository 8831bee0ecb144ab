"""Names and versions of the packages on a program's path, by the names of their metadata folders.

Runs in a child with a deadline. Folders are listed and almost no file is opened: on a network file system each would
cost a round trip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

MAX_PACKAGES = 2_000
_MAX_ENTRIES = 100_000
_MAX_NAME = 100
_DIST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[^-/]+)\.(?:dist-info|egg-info)")
_EGG = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[^-/]+)-py[0-9.]+\.egg-info")


def find(folders: Iterable[str]) -> list[str]:
    """Return `name==version` of each package, sorted; of one that is there twice the one that is imported."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for name, version in _of_folder(folder):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), f"{name.replace('_', '-')}=={version}")
            if len(found) >= MAX_PACKAGES:
                break
    return [found[key] for key in sorted(found)]


def _of_folder(folder: str) -> Iterator[tuple[str, str]]:
    if not os.path.isabs(folder):
        return
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == _MAX_ENTRIES:
                    return
                matched = _EGG.fullmatch(entry.name) or _DIST.fullmatch(entry.name)
                if matched is not None and len(entry.name) <= _MAX_NAME:
                    name, version = matched["name"], matched["version"]
                    yield _clean(name), _clean(version)
    except OSError:
        return  # a zip, or gone: nothing is said of it


def _clean(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

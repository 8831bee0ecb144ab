"""tools/rooms.py counts what it is there to count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import rooms
from tools.rooms import Limits, draw, faults, floors

FILES = {
    "__init__.py": "from .top import begin\n",
    "top.py": "from .low import ring\nfrom . import side\ndef begin():\n    return ring.size, side\n",
    "side.py": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from .top import begin\n",
    "low/__init__.py": "",
    "low/ring.py": "from . import lane\nsize = lane.size\n",
    "low/lane.py": "def late():\n    from .ring import size\n    return size\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of three rooms."""
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    for name, text in FILES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


def test_edges_go_from_room_to_room(folder: Path) -> None:
    """Imports in functions count, those for types alone and those inside a room do not."""
    drawn = draw(folder)
    assert drawn.edges == {"": {"top"}, "top": {"low", "side"}, "side": set(), "low": set()}
    assert floors(drawn.edges) == 3


def test_a_cycle_of_modules_is_named(folder: Path) -> None:
    """A late import closes one, too."""
    drawn = draw(folder)
    assert drawn.module_cycles == [["low.lane", "low.ring"]]
    assert [*faults("house", drawn, Limits(4, 3, 0, 0))] == ["house: 1 cycles, at most 0."]
    assert not [*faults("house", drawn, Limits(4, 3, 1, 0))]


def test_what_is_private_elsewhere_is_named(folder: Path) -> None:
    """An underscore that the module itself defines is its own, and so is what Python documents."""
    text = "import os\nclass Own:\n    def __init__(self):\n        self._mine = 1\n"
    (folder / "side.py").write_text(text + "def use(own, other):\n    os._exit(own._mine + other._theirs)\n")
    assert draw(folder).private == ["house/side.py:6 _theirs"]


def test_imports_below_other_packages_are_none(folder: Path) -> None:
    """A package whose name begins like ours is another one."""
    (folder / "side.py").write_text(
        "import house_party.top\nfrom house_party import top\nimport house.low.ring\n"
    )
    assert draw(folder).edges["side"] == {"low"}

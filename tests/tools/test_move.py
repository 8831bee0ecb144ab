"""tools/move.py moves modules, and what names them follows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import move

TABLE = {
    "logclient.ring": "logclient.shm.ring",
    "logclient.spawn": "logclient.spawn.agent",
    "logclient.card": "logclient.html",
}


@pytest.mark.parametrize(
    ("module", "text", "new"),
    [
        (
            "logclient.run",
            "from . import ring, errors\n",
            "from .shm import (ring)\nfrom . import (errors)\n",
        ),
        ("logclient.run", "from .ring import A as B  # why\n", "from .shm.ring import (A as B)  # why\n"),
        ("logclient.run", "from . import spawn\n", "from .spawn import (agent as spawn)\n"),
        ("logclient.run", "from .errors import A\n", "from .errors import A\n"),
        ("logclient.run", "from . import card\n", "from . import (html as card)\n"),
        ("logclient.run", "from . import card as C, run\n", "from . import (html as C, run)\n"),
        ("logclient.ring", "from .errors import A\n", "from ..errors import (A)\n"),
        ("logclient.ring", "from . import spawn\n", "from ..spawn import (agent as spawn)\n"),
        ("logclient.ring", "import os\nfrom os import path\n", "import os\nfrom os import path\n"),
        ("tests.test_a", "from logclient import ring\n", "from logclient.shm import (ring)\n"),
        (
            "logclient.a.b",
            "def f():\n    from ..ring import A\n",
            "def f():\n    from ..shm.ring import (A)\n",
        ),
        ("logclient.a.__init__", "from .. import ring\n", "from ..shm import (ring)\n"),
    ],
)
def test_imports_follow(module: str, text: str, new: str) -> None:
    """Imports of the module that moves, and of others; relative ones stay relative."""
    assert move.with_imports(text, module, TABLE) == new


OTHERS = "logclient.rings, a_logclient.ring, logclient/rings.py"


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("see `logclient/ring.py`", "see `logclient/shm/ring.py`"),
        ("as logclient.ring.take does", "as logclient.shm.ring.take does"),
        ("run('from logclient import ring')", "run('from logclient.shm import ring')"),
        (
            "  from logclient import ring, run",
            "  from logclient.shm import ring\n  from logclient import run",
        ),
        (OTHERS, OTHERS),
    ],
)
def test_mentions_follow(text: str, new: str) -> None:
    """In strings, comments and documents; longer words are others."""
    assert move.with_mentions(text, TABLE) == new


def test_what_was_moved_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole repository, by git, with its history."""
    files = {
        "logclient/__init__.py": "from .run import log\n",
        "logclient/run.py": "from . import ring, spawn\ndef log():\n    return ring.SIZE + spawn.SIZE\n",
        "logclient/ring.py": "from .spawn import SIZE\n",
        "logclient/spawn.py": "SIZE = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    monkeypatch.setattr(move, "ROOT", tmp_path)
    move.main({old: new for old, new in TABLE.items() if (tmp_path / move.path_of(old)).exists()})
    assert not (tmp_path / "logclient/ring.py").exists()
    words = [sys.executable, "-c", "import logclient; print(logclient.log())"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "2\n"

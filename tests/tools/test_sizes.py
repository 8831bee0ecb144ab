"""tools/sizes.py finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.sizes import faults

METHODS = "class Run:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(13))
PARAMETERS = "class Run:\n    def __init__(self, a, b, c, d, /, e, f, *, g, h, **i): ...\n"
OF_INIT = PARAMETERS.replace("*, ", "*, project, name, id, config, group, tags, notes, ").replace("h, ", "")
PROPERTIES = "class Run:\n" + "".join(f"    @property\n    def m{i}(self): ...\n" for i in range(13))


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("logclient/run.py", "\n" * 601, "601 lines"),
        ("tests/test_run.py", "\n" * 601, "601 lines"),
        ("logclient/run.py", METHODS, "13 public methods"),
        ("logclient/run.py", PARAMETERS, "9 parameters"),
        ("logclient/run.py", OF_INIT, "15 parameters"),
        ("logclient/integrations/keras.py", PARAMETERS, "9 parameters"),
        ("backend/logclient_backend/wal/utils.py", "", "'utils'"),
        ("backend/logclient_backend/common/file.py", "", "'common'"),
    ],
)
def test_outgrown_code_is_named(path: str, text: str, words: str) -> None:
    """One sentence for each fault, with the file and the figure."""
    (fault,) = faults(Path(path), text)
    assert path in fault
    assert words in fault


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("logclient/run.py", "\n" * 600),
        ("logclient/run.py", PROPERTIES),
        ("tests/test_model.py", METHODS),
        ("logclient/integrations/keras.py", OF_INIT),
    ],
)
def test_allowed_code_passes(path: str, text: str) -> None:
    """At the limit is allowed; properties are attributes; a test class is long; an integration names `init`'s own."""
    assert list(faults(Path(path), text)) == []

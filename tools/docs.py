"""Build the documentation as a site in build/docs; `make docs` runs it.

    python tools/docs.py     make .venv/docs where it is not up to date, then build

The environment holds what the extra `docs` asks for and not this distribution: the pages are text. The build fails
where a link leads to no page or heading, or where a page is missing in the navigation (tools/mkdocs.yml).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv" / "docs"
SITE = "build/docs"


def python_with_mkdocs() -> Path:
    """Return the interpreter of the environment, after bringing that up to date. Raises CalledProcessError."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs: list[str] = project["optional-dependencies"]["docs"]
    python, stamp = HOME / "bin" / "python", HOME / "needs.txt"
    from_what = repr((needs, sys.version))
    if not stamp.exists() or stamp.read_text() != from_what:
        venv.create(HOME, clear=True, symlinks=True)  # without pip: Debian's Python has no ensurepip
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
        subprocess.run([*pip, "install", "--quiet", *needs], check=True)
        stamp.write_text(from_what)
    return python


def build(python: Path) -> None:
    """Write the site. Raises CalledProcessError where a page has a fault."""
    command = [str(python), "-m", "mkdocs", "build", "--config-file", "tools/mkdocs.yml"]
    # The theme announces its end of life with every build; entry 1 of DECISIONS.md has it.
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


def main() -> int:
    try:
        build(python_with_mkdocs())
    except subprocess.CalledProcessError as error:
        failed = " ".join(map(str, error.cmd))
        print(f"`{failed}` failed ({error.returncode}); its own message stands above.", file=sys.stderr)
        return 1
    print(f"Open {SITE}/index.html; to search in it, run `python -m http.server --directory {SITE}`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

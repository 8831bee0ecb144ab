"""Hooks of MkDocs that lay the site out as the repository is laid out.

MkDocs takes its pages from one folder, `docs`. Here each of them keeps the path that it has in the repository, and the
pages at the root (README.md, ARCHITECTURE.md, ...) join them, README.md as the front page. A relative link between
pages is thereby right in the site as well as in the repository, and nothing has to rewrite it. Pages name files of the
source and do not link to them: those are not in the site, and such a link fails the build.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the files of the site: those of `docs` and the root by their path in the repository, and the theme's."""
    docs = Path(config.docs_dir)
    others = [file for file in files if file.src_dir != config.docs_dir]
    paths = [*ROOT.glob("*.md"), *(docs / file.src_uri for file in files if file.src_dir == config.docs_dir)]
    pages = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)
        for path in sorted(paths)
    ]
    return Files([*pages, *others])

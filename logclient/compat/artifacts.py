"""Artifacts of one process: files that a program names and takes back later, by their paths; nothing is copied.

Runs in the training process. `use_artifact(name).download()` gives a folder with links to the files that an artifact of
this name holds, if this process has logged one; else an empty folder.
"""

from __future__ import annotations

import os

from .stand_ins import Inert, scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_logged: dict[str, list[Artifact]] = {}  # name -> versions


class Artifact:
    """Named files with metadata."""

    def __init__(
        self,
        name: Any = "artifact",
        type: Any = "",
        description: str | None = None,
        metadata: Any = None,
        **others: Any,
    ) -> None:
        self.name = str(name)
        self.type = str(type)
        self.description = description
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.aliases: list[str] = []
        self.version = "v0"
        self._files: dict[str, str] = {}  # name in the artifact -> path
        self._folder = ""

    @property
    def source_name(self) -> str:
        return f"{self.name}:{self.version}"

    qualified_name = source_name

    def add_file(self, local_path: Any, name: str | None = None, *args: Any, **kwargs: Any) -> Inert:
        """Name a file of the disk."""
        path = os.path.abspath(os.fspath(local_path))
        self._files[name or os.path.basename(path)] = path
        return Inert("artifact.add_file()")

    def add_dir(self, local_path: Any, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Name a folder of the disk."""
        path = os.path.abspath(os.fspath(local_path))
        try:
            inside = os.listdir(path)
        except OSError:
            inside = []
        for each in inside:
            self._files[os.path.join(name or "", each)] = os.path.join(path, each)

    def add_reference(self, uri: Any, name: str | None = None, *args: Any, **kwargs: Any) -> list[Any]:
        """Nothing is fetched from elsewhere."""
        return []

    def add(self, obj: Any, name: str = "", *args: Any, **kwargs: Any) -> Inert:
        """Media are not kept."""
        return Inert("artifact.add()")

    def new_file(self, name: str, mode: str = "w", encoding: str | None = None) -> Any:
        """A new file, open for writing, that the artifact holds."""
        path = os.path.join(self._own_folder(), name.lstrip("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._files[name] = path
        return open(path, mode, encoding=encoding)

    def get_path(self, name: str) -> Any:
        """The entry of this name, to be downloaded."""
        return _Entry(self, name)

    get_entry = get_path

    def get(self, name: str) -> Inert:
        """Media are not kept."""
        return Inert("artifact.get()")

    def wait(self, *args: Any, **kwargs: Any) -> Artifact:
        """There is nothing to wait for."""
        return self

    def file(self, root: str | None = None) -> str:
        """The path of the one file."""
        return next(iter(self._files.values()), os.path.join(scratch("empty"), "none"))

    def files(self, *args: Any, **kwargs: Any) -> list[_Entry]:
        """The entries."""
        return [_Entry(self, name) for name in self._files]

    def download(self, root: Any = None, *args: Any, **kwargs: Any) -> str:
        """A folder with links to the files, as far as they are there."""
        if not self._files:
            return scratch("empty") if root is None else _made(os.fspath(root))
        folder = _made(os.path.join(self._own_folder(), "links") if root is None else os.fspath(root))
        for name, path in self._files.items():
            link = os.path.join(folder, name.lstrip("/"))
            if os.path.exists(path) and not os.path.lexists(link):
                try:
                    os.makedirs(os.path.dirname(link), exist_ok=True)
                    os.symlink(path, link)
                except OSError:
                    continue  # a file system without links: the file stays where it is
        return folder

    checkout = download

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Inert(f"artifact.{name}")

    def _own_folder(self) -> str:
        if not self._folder:
            self._folder = _made(os.path.join(scratch("artifacts"), f"{id(self):x}"))
        return self._folder


class _Entry:
    """One file of an artifact."""

    def __init__(self, artifact: Artifact, name: str) -> None:
        self.name = self.path = name
        self._artifact = artifact

    def download(self, root: Any = None, *args: Any, **kwargs: Any) -> str:
        return os.path.join(self._artifact.download(root), self.name)

    local_path = download

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Inert(f"artifact entry.{name}")


def log(given: Any, name: Any = None, type: Any = None, aliases: Any = None) -> Any:
    """Keep the names of an artifact's files, or of a path that stands for one."""
    if isinstance(given, Inert):
        return given
    artifact = given if isinstance(given, Artifact) else Artifact(name or "artifact", type or "")
    if artifact is not given and isinstance(given, (str, os.PathLike)):
        add = artifact.add_dir if os.path.isdir(given) else artifact.add_file
        add(given)
    versions = _logged.setdefault(artifact.name, [])
    if artifact not in versions:
        artifact.version = f"v{len(versions)}"
        versions.append(artifact)
    artifact.aliases += [aliases] if isinstance(aliases, str) else [*map(str, aliases or ())]
    return artifact


def use(wanted: Any, type: Any = None) -> Any:
    """The artifact of this name that this process has logged; else one that holds nothing."""
    if not isinstance(wanted, (str, os.PathLike)):
        return wanted
    name, _, version = os.path.basename(os.fspath(wanted)).partition(":")
    versions = _logged.get(name, ())
    for artifact in reversed(versions):
        if version in ("", "latest", artifact.version, *artifact.aliases):
            return artifact
    return Artifact(name, type or "")


def _made(folder: str) -> str:
    os.makedirs(folder, exist_ok=True)
    return folder

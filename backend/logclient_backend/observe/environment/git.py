"""Commit, branch and remote of the repository around a folder, and whether its files differ from the commit.

Runs in a child with a deadline. A repository is data of whoever wrote it: its configuration may name programs as hooks,
filters, fsmonitor, pagers, diff drivers, text converters, credential helpers and aliases. None of that is read: `git`
is run with a git directory of our own, on tmpfs, that has a HEAD, a copy of the index, and the repository's objects
by their path. It finds no other configuration, so attributes in the work tree name drivers that do not exist.

What is run, with an environment of our own:

- `git config --file FILE --no-includes --get-regexp ...`: a few values, which are checked, and the remote's address;
- `git diff --quiet --no-ext-diff --no-textconv --ignore-submodules=all HEAD`: do tracked files differ? Submodules are
  left out: git would start a git in each, with that one's configuration;
- only where the diff is asked for, the same without `--quiet`.

Invariants:

- nothing is written to the repository, and no lock is taken in it: the index is a copy, and so is what git makes of it;
- every wait has a deadline, and every output a limit; a git that is late is killed.

Commit and branch are read without git: where there is none, or it is slow, they are known all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from logclient.shm.regular import open_regular, read_regular

from . import masking

LIMIT_S = 8.0  # of all that git is asked
MAX_DIFF_BYTES = 256 << 10
_MAX_INDEX_BYTES = 32 << 20  # some 300,000 files
_MAX_REFS_BYTES = 32 << 20
_MAX_LINE = 4096
_REAP_S = 0.5
_MAX_UP = 64  # folders
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
# what decides whether a file counts as changed, and names no program
_PLAIN = {
    "core.filemode": ("true", "false"),
    "core.symlinks": ("true", "false"),
    "core.ignorecase": ("true", "false"),
    "core.trustctime": ("true", "false"),
    "core.autocrlf": ("true", "false", "input"),
    "core.eol": ("lf", "crlf", "native"),
    "core.checkstat": ("default", "minimal"),
}
_WANTED = r"^(core\.(filemode|symlinks|ignorecase|trustctime|autocrlf|eol|checkstat)|remote\..*\.url)$"


class Repository:
    """The folders of one repository."""

    def __init__(self, top: str, git_dir: str) -> None:
        """`top`: of the work tree; `git_dir`: of this work tree, which a linked one shares only in part."""
        self.top, self.git_dir = top, git_dir
        common = _line(os.path.join(git_dir, "commondir"))
        self.common = os.path.normpath(os.path.join(git_dir, common)) if common else git_dir

    def head(self) -> tuple[str, str]:
        """Return (commit, branch); empty where there is none, or where refs are kept in another way."""
        line = _line(os.path.join(self.git_dir, "HEAD"))
        if _COMMIT.fullmatch(line):
            return line, ""
        ref = line.removeprefix("ref:").strip()
        if not line.startswith("ref:") or not _REF.fullmatch(ref) or ".." in ref:
            return "", ""
        branch = ref.removeprefix("refs/heads/")
        for folder in (self.git_dir, self.common):
            commit = _line(os.path.join(folder, ref))
            if _COMMIT.fullmatch(commit):
                return commit, branch
        return self._packed(ref), branch

    def _packed(self, ref: str) -> str:
        try:
            data = read_regular(os.path.join(self.common, "packed-refs"), max_bytes=_MAX_REFS_BYTES)
        except OSError:
            return ""
        ending = b" " + ref.encode()
        for line in data.splitlines():
            if line.endswith(ending) and _COMMIT.fullmatch(
                commit := line[: -len(ending)].decode("ascii", "replace")
            ):
                return commit
        return ""


def find(folder: str) -> Repository | None:
    """Return the repository around a folder; None: there is none."""
    if not os.path.isabs(folder):
        return None
    for _ in range(_MAX_UP):
        path = os.path.join(folder, ".git")
        if os.path.isdir(path):
            return Repository(folder, path)
        linked = _line(path)
        if linked.startswith("gitdir:"):
            return Repository(folder, os.path.normpath(os.path.join(folder, linked[7:].strip())))
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return None


def describe(folders: Sequence[str], scratch: str, path: str, *, wants_diff: bool) -> dict[str, Any]:
    """Return what is known of the first repository around one of these folders; empty: there is none.

    `scratch`: an empty folder on tmpfs; `path`: where `git` is looked for.
    """
    found = next((each for each in map(find, folders) if each is not None), None)
    if found is None:
        return {}
    commit, branch = found.head()
    made: dict[str, Any] = {
        "top": _text(found.top),
        "commit": commit,
        "branch": _text(branch),
        "remote": "",
        "dirty": None,
        "why": "",  # nobody knows whether it is dirty
    }
    git = shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))))
    if git is None:
        return made | {"why": "git is not installed"}
    if not commit:
        made["why"] = "it has no commit, or keeps its refs in a way that is not read here"
    asked = _Git(git, found, scratch, time.monotonic() + LIMIT_S)
    try:
        made["remote"] = asked.prepare(commit)
        if commit:
            made["dirty"] = asked.is_dirty()
            if wants_diff and made["dirty"]:
                made["diff"], made["diff_cut"] = asked.diff()
    except (OSError, _Trouble) as error:
        made["why"] = error.strerror or "an error" if isinstance(error, OSError) else str(error)
    return made


class _Trouble(Exception):
    """The reason why git gave no answer, as a clause."""


class _Git:
    """`git`, with a git directory of our own."""

    def __init__(self, program: str, repository: Repository, scratch: str, deadline: float) -> None:
        self._program = program
        self._repository = repository
        self._scratch = scratch
        self._deadline = deadline
        self._environment = {
            "GIT_DIR": scratch,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_PAGER": "cat",
            "HOME": scratch,
            "LC_ALL": "C",
            "PATH": os.path.dirname(program),
        }

    def prepare(self, commit: str) -> str:
        """Make the git directory, and return the address of the remote."""
        self._write("HEAD", f"{commit or '0' * 40}\n")
        os.mkdir(os.path.join(self._scratch, "refs"), 0o700)
        os.mkdir(os.path.join(self._scratch, "objects"), 0o700)
        self._write("config", "")
        values, remotes = self._read_config()
        lines = ["[core]", "\tbare = false"]
        if len(commit) == 64:
            lines[1:1] = [
                "\trepositoryformatversion = 1",
                "[extensions]",
                "\tobjectformat = sha256",
                "[core]",
            ]
        lines += [f"\t{name.partition('.')[2]} = {value}" for name, value in values.items()]
        self._write("config", "\n".join(lines) + "\n")
        remote = remotes.get("remote.origin.url") or next(iter(remotes.values()), "")
        return masking.address(remote)[:_MAX_LINE]

    def is_dirty(self) -> bool:
        """Do tracked files differ from the commit, in the work tree or in the index?"""
        self._copy_index()
        _, code = self._run(self._diff_words("--quiet"), 0)
        if code not in (0, 1):
            raise _Trouble(f"git ended with {code}")
        return code == 1

    def diff(self) -> tuple[str, bool]:
        """Return the difference as text, without what looks like a secret, and whether it was cut."""
        data, code = self._run(
            self._diff_words("--no-color", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
        )
        is_cut = code is None
        return masking.text(data.decode("utf-8", "replace")), is_cut

    def _diff_words(self, *more: str) -> list[str]:
        fixed = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all")
        # a file beyond 1 MiB is compared by its hash, piece by piece, and shown as binary
        return ["-c", "core.bigFileThreshold=1m", "diff", *fixed, *more, "HEAD", "--"]

    def _read_config(self) -> tuple[dict[str, str], dict[str, str]]:
        file = os.path.join(self._repository.common, "config")
        os.close(open_regular(file))  # no FIFO, and not too large
        words = ["config", "--file", file, "--no-includes", "-z", "--get-regexp", _WANTED]
        data, _ = self._run(words, 1 << 16)
        values: dict[str, str] = {}
        remotes: dict[str, str] = {}
        for entry in data.decode("utf-8", "replace").split("\0"):
            name, _, value = entry.partition("\n")
            if value.lower() in _PLAIN.get(name, ()):
                values[name] = value.lower()
            elif name.startswith("remote."):
                remotes.setdefault(name, value)
        return values, remotes

    def _copy_index(self) -> None:
        """Copy the index, with its time: what was changed in the same moment is compared by content."""
        source = os.path.join(self._repository.git_dir, "index")
        try:
            fd = open_regular(source)
        except FileNotFoundError:
            raise _Trouble("it has no index: nothing was checked out") from None
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            if facts.st_size > _MAX_INDEX_BYTES:
                raise _Trouble(
                    f"its index has {facts.st_size >> 20} MiB, and {_MAX_INDEX_BYTES >> 20} are looked into"
                )
            target = os.path.join(self._scratch, "index")
            with open(target, "xb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
            os.utime(target, ns=(facts.st_mtime_ns, facts.st_mtime_ns))
        for name in os.listdir(self._repository.git_dir):
            if name.startswith("sharedindex."):  # an index in two parts
                os.symlink(os.path.join(self._repository.git_dir, name), os.path.join(self._scratch, name))

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self._scratch, name), "w", encoding="utf-8") as file:
            file.write(text)

    def _run(self, words: list[str], most: int = MAX_DIFF_BYTES) -> tuple[bytes, int | None]:
        """Run git; its output, and its exit code, None where it had more to say. `_Trouble` where it is late."""
        repository = self._repository
        environment = {
            **self._environment,
            "GIT_WORK_TREE": repository.top,
            "GIT_OBJECT_DIRECTORY": os.path.join(repository.common, "objects"),
        }
        fixed = [
            "--no-pager",
            "--no-replace-objects",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
        ]
        process = subprocess.Popen(
            [self._program, *fixed, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=repository.top,
        )
        data = bytearray()
        assert process.stdout is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while len(data) <= most:
                    if not selector.select(max(0.0, self._deadline - time.monotonic())):
                        raise _Trouble(f"git gave no answer within {LIMIT_S:g} s")
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    if not part:
                        break
                    data += part
            if len(data) > most:
                return bytes(data[:most]), None
            try:
                return bytes(data), process.wait(max(0.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise _Trouble(f"git gave no answer within {LIMIT_S:g} s") from None
        finally:
            process.stdout.close()
            if process.poll() is None:
                process.kill()
                with contextlib.suppress(
                    subprocess.TimeoutExpired
                ):  # state D: it ends when the kernel lets it
                    process.wait(_REAP_S)


def _line(path: str) -> str:
    """Return the first line of a small regular file; empty where it cannot be read."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(_MAX_LINE).partition(b"\n")[0].decode("utf-8", "surrogateescape").strip()
    except OSError:
        return ""


def _text(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:_MAX_LINE]

"""Commit, branch, remote and changes of real repositories; of hostile ones, too, in which nothing may run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.observe.environment import git

PATH = os.environ.get("PATH", "")
ENV = {
    "PATH": PATH,
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
Ask = Callable[..., dict[str, Any]]


def run(folder: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env=ENV, capture_output=True, text=True, timeout=60
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """One commit on the branch `main`, with two files and a folder below."""
    folder = tmp_path / "repo"
    (folder / "below").mkdir(parents=True)
    run(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("a\n")
    (folder / "below" / "b.txt").write_text("b\n")
    run(folder, "add", ".")
    run(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return what is known of a folder; nothing is left in the scratch folder's place but ours."""
    count = iter(range(100))

    def asked(folder: Path, path: str = PATH, *, wants_diff: bool = False) -> dict[str, Any]:
        scratch = tmp_path / f"scratch-{next(count)}"
        scratch.mkdir()
        return git.describe([str(folder)], str(scratch), path, wants_diff=wants_diff)

    return asked


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder / ".git").rglob("*")
    }


def test_a_clean_repository_and_changed_ones(repo: Path, ask: Ask) -> None:
    """From a folder below; a change in the work tree, in the index, a removed file; nothing is written."""
    run(repo, "remote", "add", "origin", "https://me:s3cret@host/a/b.git")
    before = snapshot(repo)
    found = ask(repo / "below")
    assert found == {
        "top": str(repo),
        "commit": run(repo, "rev-parse", "HEAD"),
        "branch": "main",
        "remote": "https://host/a/b.git",
        "dirty": False,
        "why": "",
    }
    (repo / "untracked").write_text("x")
    assert ask(repo)["dirty"] is False, "files that nobody tracks"
    os.utime(repo / "a.txt", ns=(1, 1))
    assert ask(repo)["dirty"] is False, "touched, and the same"
    assert snapshot(repo) == before
    (repo / "a.txt").write_text("c\n")
    found = ask(repo, wants_diff=True)
    assert found["dirty"] is True and "-a\n+c\n" in found["diff"] and not found["diff_cut"]
    run(repo, "add", "a.txt")
    assert ask(repo)["dirty"] is True, "in the index"
    run(repo, "commit", "-qam", "second")
    (repo / "below" / "b.txt").unlink()
    assert ask(repo)["dirty"] is True
    assert snapshot(repo) == (after := snapshot(repo)) and "index.lock" not in "".join(after)


def test_other_kinds_of_repositories(repo: Path, ask: Ask, tmp_path: Path) -> None:
    """A detached head, packed refs, a linked work tree, a copy, no commit yet, an index in two parts, none at all."""
    commit = run(repo, "rev-parse", "HEAD")
    run(repo, "pack-refs", "--all")
    assert (ask(repo)["commit"], ask(repo)["branch"]) == (commit, "main")
    run(repo, "worktree", "add", "-q", "-b", "side/x", str(tmp_path / "linked"))
    found = ask(tmp_path / "linked")
    assert (found["commit"], found["branch"], found["dirty"]) == (commit, "side/x", False)
    run(repo, "checkout", "-q", "--detach")
    assert (ask(repo)["commit"], ask(repo)["branch"]) == (commit, "")
    shutil.copytree(repo, tmp_path / "copy", symlinks=True)
    assert ask(tmp_path / "copy")["dirty"] is False, "each file has another inode"
    run(repo, "update-index", "--split-index")
    assert ask(repo)["dirty"] is False
    (tmp_path / "new").mkdir()
    run(tmp_path / "new", "init", "-q")
    found = ask(tmp_path / "new")
    assert (found["commit"], found["dirty"]) == ("", None) and "no commit" in found["why"]
    (tmp_path / "none").mkdir()
    assert ask(tmp_path / "none") == {}


def test_a_repository_with_sha256(tmp_path: Path, ask: Ask) -> None:
    folder = tmp_path / "long"
    folder.mkdir()
    run(folder, "init", "-q", "--object-format=sha256")
    (folder / "a").write_text("a")
    run(folder, "add", ".")
    run(folder, "commit", "-qm", "x")
    found = ask(folder)
    assert len(found["commit"]) == 64 and found["dirty"] is False


def test_file_modes_count_as_the_repository_says(repo: Path, ask: Ask) -> None:
    """`core.fileMode=false`, as on a share, is followed; it names no program."""
    (repo / "a.txt").chmod(0o755)
    assert ask(repo)["dirty"] is True
    run(repo, "config", "core.fileMode", "false")
    assert ask(repo)["dirty"] is False


def test_without_git_the_commit_is_known(repo: Path, ask: Ask, tmp_path: Path) -> None:
    """Nobody knows whether it is dirty, and why is said."""
    found = ask(repo, str(tmp_path))
    assert found["commit"] == run(repo, "rev-parse", "HEAD") and found["branch"] == "main"
    assert (found["dirty"], found["why"]) == (None, "git is not installed")


def test_a_git_that_hangs_is_killed(
    repo: Path, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never ends, as such and as a script: the deadline holds, and no process of it is left."""
    monkeypatch.setattr(git, "LIMIT_S", 0.5)
    for body in ("exec /bin/sleep 1000", "while :; do /bin/sleep 0.01; done"):
        folder = tmp_path / os.urandom(4).hex()
        folder.mkdir()
        pid = folder / "pid"
        (folder / "git").write_text(f"#!/bin/sh\necho $$ > {pid}\n{body}\n")
        (folder / "git").chmod(0o755)
        begun = time.monotonic()
        found = ask(repo, f"{folder}:{PATH}")
        assert time.monotonic() - begun < 30
        assert found["commit"] and found["dirty"] is None and "no answer within" in found["why"]
        stat = Path(f"/proc/{int(pid.read_text())}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_index_that_is_too_large_is_not_copied(
    repo: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on memory: the index is copied to tmpfs."""
    monkeypatch.setattr(git, "_MAX_INDEX_BYTES", 10)
    found = ask(repo)
    assert found["commit"] and found["dirty"] is None and "its index has" in found["why"]


def test_a_long_diff_is_cut(repo: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "a.txt").write_text("line\n" * 100_000)
    found = ask(repo, wants_diff=True)
    assert found["diff_cut"] and len(found["diff"]) <= git.MAX_DIFF_BYTES


def test_secrets_in_a_diff_are_masked(repo: Path, ask: Ask) -> None:
    (repo / "a.txt").write_text("api_key = 's3cret'\n")
    found = ask(repo, wants_diff=True)
    assert "+api_key = ***" in found["diff"] and "s3cret" not in found["diff"]


HOOKS = (
    *(
        "applypatch-msg",
        "commit-msg",
        "fsmonitor-watchman",
        "post-applypatch",
        "post-checkout",
        "post-commit",
    ),
    *("post-index-change", "post-merge", "post-rewrite", "pre-applypatch", "pre-auto-gc", "pre-commit"),
    *("pre-push", "pre-rebase", "prepare-commit-msg", "reference-transaction", "update"),
)
PROGRAMS = (
    *("core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "core.askPass", "core.gitProxy"),
    *("core.alternateRefsCommand", "diff.external", "diff.x.command", "diff.x.textconv", "filter.x.clean"),
    *("filter.x.smudge", "filter.x.process", "credential.helper", "gpg.program", "gpg.ssh.program"),
    *(
        "sequence.editor",
        "interactive.diffFilter",
        "uploadpack.packObjectsHook",
        "pager.diff",
        "pager.config",
    ),
    *("remote.origin.uploadpack", "remote.origin.vcs", "merge.x.driver", "mergetool.x.cmd", "difftool.x.cmd"),
    *("trailer.x.command", "sendemail.smtpServer", "web.browser", "browser.x.cmd", "man.x.cmd"),
    *("init.templateDir", "submodule.sub.update"),
)


def hostile(repo: Path, tmp_path: Path, marks: Path) -> None:
    """Name a program for everything that can name one, in the repository and in a submodule of it."""
    marks.mkdir()
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\ntouch "{marks}/$(basename "$0")-$$"\nexit 0\n')
    trap.chmod(0o755)
    sub = tmp_path / "sub"
    shutil.copytree(repo, sub)
    run(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(sub), "sub")
    (repo / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    run(repo, "add", ".")
    run(repo, "commit", "-qm", "with attributes")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    inner = repo / ".git" / "modules" / "sub"
    for folder in (hooks, repo / ".git" / "hooks", inner / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in HOOKS:
            (folder / name).unlink(missing_ok=True)
            shutil.copy(trap, folder / name)
    included = tmp_path / "included"
    included.write_text(f"[core]\n\tfsmonitor = {trap}\n")
    for config in (repo / ".git" / "config", inner / "config"):
        for name in PROGRAMS:
            value = f"!{trap}" if name.startswith(("credential", "submodule")) else str(trap)
            subprocess.run(["git", "config", "-f", str(config), name, value], env=ENV, check=True, timeout=60)
        for name, value in (
            ("core.hooksPath", str(hooks)),
            ("core.worktree", str(tmp_path)),
            ("include.path", str(included)),
            ("filter.x.required", "true"),
            ("protocol.ext.allow", "always"),
            ("remote.origin.url", f"ext::{trap}"),
            ("remote.origin.promisor", "true"),
            ("extensions.partialClone", "origin"),
            *((f"alias.{word}", f"!{trap}") for word in ("diff", "config", "status", "x")),
        ):
            if not (name == "core.worktree" and config.parent == inner):
                subprocess.run(
                    ["git", "config", "-f", str(config), name, value], env=ENV, check=True, timeout=60
                )
    (repo / "a.txt").write_text("changed\n")
    (repo / "sub" / "a.txt").write_text("changed\n")


def test_nothing_runs_that_a_repository_names(repo: Path, ask: Ask, tmp_path: Path) -> None:
    """Hooks, filters, fsmonitor, pagers, diff drivers, converters, credentials, aliases: not one, also for the diff."""
    marks = tmp_path / "marks"
    hostile(repo, tmp_path, marks)
    before = snapshot(repo)
    found = ask(repo, wants_diff=True)
    assert found["branch"] == "main" and found["dirty"] is True and "+changed" in found["diff"]
    found = ask(repo / "sub", wants_diff=True)
    assert found["dirty"] is True and "+changed" in found["diff"]
    assert not list(marks.iterdir())
    assert snapshot(repo) == before
    subprocess.run(
        ["git", "-C", str(repo), "--work-tree", str(repo), "diff"], env=ENV, capture_output=True, timeout=60
    )
    assert list(marks.iterdir()), "the trap works: a plain git runs it"


def test_odd_files_in_a_repository_hold_nobody_up(repo: Path, ask: Ask) -> None:
    """A FIFO in the place of the configuration, the index or a ref; a ref that leads out of the repository."""
    commit = ask(repo)["commit"]
    for name in ("config", "index"):
        shutil.move(repo / ".git" / name, repo / "kept")
        os.mkfifo(repo / ".git" / name)
        found = ask(repo)
        assert found["commit"] == commit and found["dirty"] is None and found["why"]
        (repo / ".git" / name).unlink()
        shutil.move(repo / "kept", repo / ".git" / name)
    (repo / ".git" / "refs" / "heads" / "main").unlink()
    os.mkfifo(repo / ".git" / "refs" / "heads" / "main")
    assert ask(repo)["commit"] == ""
    for line in ("ref: refs/../../x", "ref: /etc/passwd", "ref: refs/a b", "x" * 100_000, ""):
        (repo / ".git" / "HEAD").write_text(line)
        assert ask(repo)["commit"] == ""

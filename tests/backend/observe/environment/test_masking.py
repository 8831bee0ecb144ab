"""Secrets in command lines, variables, texts and addresses; and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient_backend.observe.environment import masking, packages, program

TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["train.py", "--lr", "0.1", "--wandb-key", "s3cret"],
            ["train.py", "--lr", "0.1", "--wandb-key", "***"],
        ),
        (["--api_key=s3cret", "lr=0.1"], ["--api_key=***", "lr=0.1"]),
        (["logger.auth.token=s3cret"], ["logger.auth.token=***"]),
        (["+hub.password='two words'"], ["+hub.password=***"]),
        (['{"lr": 1, "secret": "s3cret", "x": 2}'], ['{"lr": 1, "secret": ***, "x": 2}']),
        (["--password", "--lr", "1"], ["--password", "--lr", "1"]),
        (["https://me:s3cret@host/x?a=1"], ["https://***@host/x?a=1"]),
        (["postgres://me@host/db"], ["postgres://***@host/db"]),
        (["https://host/x?token=s3cret&a=1"], ["https://host/x?token=***&a=1"]),
        (["-H", "Authorization: Bearer s3cret-s3cret"], ["-H", "Authorization: *** ***"]),
        (["bearer s3cret-s3cret"], ["bearer ***"]),
        ([f"x{TOKEN}", TOKEN, f"a={TOKEN}"], [f"x{TOKEN}", "***", "a=***"]),
        (["lct_" + "x" * 43], ["***"]),
        (["AKIA" + "A1" * 8, "hf_" + "a" * 34], ["***", "***"]),
        (["eyJhbGciOiJI.eyJzdWIiOiIx.sig-nature_"], ["***"]),
        (["--epochs=3", "data/keys.csv", "a b", ""], ["--epochs=3", "data/keys.csv", "a b", ""]),
    ],
)
def test_command_lines_are_masked(words: list[str], shown: list[str]) -> None:
    """By the name of an option or setting, by an address, by the form of a token; the rest is kept as it is."""
    assert masking.arguments(words) == shown
    assert "s3cret" not in " ".join(masking.arguments(words))


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "HF_TOKEN",
        "aws_secret_access_key",
        "PGPASSWORD",
        "SSH_AUTH_SOCK",
        "SLURM_JWT",
        "MY_PASSWD",
        "Credentials",
    ],
)
def test_variables_with_such_names_are_never_kept(name: str) -> None:
    assert masking.variables({name: "plain"}) == {name: "***"}


def test_a_private_key_is_masked_whole() -> None:
    """Also one that was cut."""
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----"
    assert masking.text(f"a {key} b") == "a *** b"
    assert masking.text(key[:40]) == "***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:s3cret@github.com/a/b.git", "https://github.com/a/b.git"),
        ("https://s3cret@github.com/a/b.git", "https://github.com/a/b.git"),
        ("ssh://git:s3cret@host:22/a@b", "ssh://host:22/a@b"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        (f"https://host/{TOKEN}/x", "https://host/***/x"),
        ("/local/path", "/local/path"),
    ],
)
def test_addresses_have_no_password(url: str, shown: str) -> None:
    assert masking.address(url) == shown


def test_variables_are_kept_by_a_list() -> None:
    """Variables that decide how a training runs are kept, and no others unless all are asked for."""
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
        "SLURM_JOB_ID",
        "RANK",
        "OMP_NUM_THREADS",
        "LOGCLIENT_DIR",
    ):
        assert program.is_kept(name)
    for name in ("HOME", "PATH", "AWS_PROFILE", "DISPLAY", "CUDA"):
        assert not program.is_kept(name)


def test_packages_are_found_by_their_folders(tmp_path: Path) -> None:
    """The first folder that has a package counts; what is no package, or not there, costs nothing."""
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (
        first / "torch-2.1.0+cu118.dist-info",
        first / "my_pkg-1.0.dist-info",
        first / "not a package",
        second / "torch-1.0.dist-info",
        second / "old-0.1-py3.11.egg-info",
        second / "numpy",
    ):
        path.mkdir(parents=True)
    found = packages.find([str(first), str(tmp_path / "gone"), "relative", str(second), str(first)])
    assert found == ["my-pkg==1.0", "old==0.1", "torch==2.1.0+cu118"]

"""The part of a program that a stack is in, by the files and functions of its frames.

The innermost frames decide, but for those that only wait (queues, threads, selectors): behind them stands who waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .stacks import Frame

LOGGER, DATA_LOADING, COLLECTIVE, ACCELERATOR, COMPILING, USER_CODE = (
    *("logger", "data loading", "collective or peer"),
    *("accelerator", "compiling", "user code"),
)

# (part, file, function), searched frame by frame from the innermost on: the first that matches decides
_RULES: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (part, re.compile(file), re.compile(function))
    for part, file, function in (
        (LOGGER, r"/logclient(_backend)?/", r""),
        (DATA_LOADING, r"/torch/utils/data/", r""),
        (DATA_LOADING, r"/(datasets|webdataset|ffcv|nvidia/dali|tensorflow_datasets|grain)/", r""),
        (COLLECTIVE, r"/torch/distributed/|/horovod/|/mpi4py/|/deepspeed/comm/", r""),
        (
            COLLECTIVE,
            r"/jax/experimental/multihost_utils|/torch_xla/core/xla_model",
            r"sync|barrier|rendezvous|all_",
        ),
        (
            ACCELERATOR,
            r"/torch/(cuda|xpu|mps)/|/torch_xla/|/jax/",
            r"synchronize|wait_|mark_step|block_until",
        ),
        (
            COMPILING,
            r"/torch/(_dynamo|_inductor|_functorch)/|/triton/|/jax/_src/(compiler|pjit|interpreters)",
            r"",
        ),
    )
)
_WAITS = re.compile(
    r"/(threading|queue|selectors|socket|subprocess|ssl|multiprocessing/\w+|concurrent/futures/\w+)\.py$"
)


def part_of(frames: Sequence[Frame]) -> str:
    """Return the part that the frames, innermost first, are in."""
    for frame in frames:
        if (part := _known_part(frame)) is not None:
            return part
        if not _WAITS.search(frame.file):
            return USER_CODE if not _is_library(frame.file) else _behind(frames)
    return USER_CODE


def _behind(frames: Iterable[Frame]) -> str:
    """Return the part of the first frame that a rule knows; a library that none knows was called by the user."""
    return next((part for frame in frames if (part := _known_part(frame)) is not None), USER_CODE)


def _known_part(frame: Frame) -> str | None:
    """Return the part of the first rule that matches a frame."""
    for part, file, function in _RULES:
        if file.search(frame.file) and function.search(frame.function):
            return part
    return None


def _is_library(file: str) -> bool:
    return (
        "/site-packages/" in file
        or "/dist-packages/" in file
        or re.search(r"/lib/python3\.\d+/", file) is not None
    )


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, or the innermost of all; None where there is none."""
    for frame in frames:
        if not _is_library(frame.file) and not frame.file.startswith("<"):
            return frame
    return frames[0] if frames else None

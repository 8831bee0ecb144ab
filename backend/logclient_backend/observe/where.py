"""The part of a program that a stack is in, by the files and functions of its frames.

Frames are read from the innermost on. The first that a rule knows decides, and no frame behind one of the user's own
code does: a hook that a sharded module calls, or a data set that a loader calls, is user code, whatever library it is
in. The one exception are compilers: they run the user's functions to trace them, so a library that such a function is
in is traced, and waits for nobody.

Frames that run a model, or a compiled one, are of no part. They stand around all that the model does: `forward` of a
sharded module is no collective, and the entry of a compiled function does not compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .stacks import Frame

LOGGER, DATA_LOADING, COLLECTIVE, ACCELERATOR, COMPILING, USER_CODE = (
    *("logger", "data loading", "collective or peer"),
    *("accelerator", "compiling", "user code"),
)

_SITE = r"/(?:site|dist)-packages/"
_RUNS_MODEL = r"^(?!(?:.*\.)?(?:\w*forward|\w*wrapper|inner|_call_impl|__call__)$)"
# (part, file, function), searched frame by frame from the innermost on: the first that matches decides
_RULES: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (part, re.compile(file), re.compile(function))
    for part, file, function in (
        (
            LOGGER,
            r"/logclient/(?:run\.py|(?:session|shm|encode|guest|spawn|launching|integrations|compat)/)",
            r"",
        ),
        (LOGGER, r"/logclient_backend/", r""),
        (DATA_LOADING, r"/torch/utils/data/", r""),
        (DATA_LOADING, rf"{_SITE}(?:datasets|webdataset|ffcv|nvidia/dali|tensorflow_datasets|grain)/", r""),
        (COLLECTIVE, r"/torch/distributed/(?!elastic/|run\.py|launch)", _RUNS_MODEL),
        (COLLECTIVE, rf"/deepspeed/comm/|{_SITE}(?:horovod|mpi4py)/", r""),
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
        (ACCELERATOR, r"/jax/_src/interpreters/pxla\.py", r"ExecuteReplicated\.__call__|^__call__$"),
        (
            COMPILING,
            # not the frames that run what was compiled
            r"/torch/_dynamo/(?!eval_frame|external_utils)|/torch/_inductor/(?!output_code|utils|cudagraph|runtime/)"
            r"|/torch/_functorch/(?!aot_autograd|_aot_autograd/runtime_wrappers)|/triton/(?!runtime/|backends/\w+/driver)"
            r"|/jax/_src/(compiler|pjit|interpreters)",
            r"",
        ),
    )
)
_INSTALLED = re.compile(_SITE + r"|/lib/python3\.\d+/")
_WAITS = re.compile(
    r"/(threading|queue|selectors|socket|subprocess|ssl|multiprocessing/\w+|concurrent/futures/\w+)\.py$"
)
# Code that a compiler wrote, and frames without a file.
_GENERATED = re.compile(r"/torchinductor_|/torch_compile|^<(?!string>|stdin>|ipython)")

_DRIVERS = re.compile(
    r"_*(?:nv\d{3,}rm|(?:nvidia|uvm|rm_ioctl|nvlink|amdgpu|kfd|amdkcl|i915|xe|habanalabs)_)"
)


def part_of(frames: Sequence[Frame]) -> str:
    """Return the part that the frames, innermost first, are in."""
    for at, frame in enumerate(frames):
        if (part := _known_part(frame)) is not None:
            return part
        if not is_library(frame.file):
            traced = at > 0 and any(_known_part(each) == COMPILING for each in frames[at:])
            return COMPILING if traced else USER_CODE
    return USER_CODE


def is_driver(functions: Iterable[str]) -> bool:
    """Does a device driver stand in a kernel stack? Functions, or a wait channel alone."""
    return any(_DRIVERS.match(function) for function in functions)


def _known_part(frame: Frame) -> str | None:
    """Return the part of the first rule that matches a frame."""
    for part, file, function in _RULES:
        if file.search(frame.file) and function.search(frame.function):
            return part
    return None


def is_library(file: str) -> bool:
    """Is it no code of the user's: installed, of the standard library, or generated?"""
    return any(pattern.search(file) for pattern in (_INSTALLED, _WAITS, _GENERATED))


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, or the innermost of all; None where there is none."""
    for frame in frames:
        if not is_library(frame.file) and not frame.file.startswith("<"):
            return frame
    return frames[0] if frames else None

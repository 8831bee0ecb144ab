"""The part of a program that a stack is in, by stacks that real programs had (torch 2.13, Python 3.11, by py-spy)."""

from __future__ import annotations

import re

import pytest

from logclient_backend.observe import where
from logclient_backend.observe.stacks import Frame

SITE = "/usr/lib/python3.11/site-packages/"
STANDARD = "/usr/lib/python3.11/"
HOME = "/home/me/"
CALLS = """
    Module._call_impl (torch/nn/modules/module.py:1789)
    Module._wrapped_call_impl (torch/nn/modules/module.py:1778)
"""
FSDP = (
    CALLS
    + """
    FullyShardedDataParallel.forward (torch/distributed/fsdp/fully_sharded_data_parallel.py:857)
"""
    + CALLS
    + "main (train.py:52)\n<module> (train.py:53)\n"
)


def stack(text: str) -> list[Frame]:
    """The frames of a stack as py-spy prints it, innermost first; `train.py` is the user's."""
    found = []
    for line in text.split("\n"):
        if match := re.fullmatch(r"\s*(.+) \((.+):(\d+)\)", line):
            function, file, number = match.groups()
            if file == "train.py":
                base = HOME
            elif file.startswith(("/", "<")):
                base = ""
            else:
                base = SITE if "/" in file and not file.startswith("multiprocessing/") else STANDARD
            found.append(Frame(function, base + file, int(number)))
    return found


WAITS = "Condition.wait (threading.py:327)\nQueue.get (queue.py:171)\n"
DECODES = "raw_decode (json/decoder.py:355)\nloads (json/__init__.py:346)\n".replace(
    "json/", STANDARD + "json/"
)
HOOK = "hook (train.py:13)\nModule._call_impl.<locals>.inner (torch/nn/modules/module.py:1821)\n"
MODEL = "Model.forward (train.py:12)\n"

USER = [
    ("hook of a module in a sharded one, in a library", DECODES + HOOK + CALLS + MODEL + FSDP),
    ("hook of a module in a sharded one, in a queue", WAITS + HOOK + CALLS + MODEL + FSDP),
    ("model in a sharded one, in a library", DECODES + MODEL + FSDP),
    ("library modules alone in a sharded one", "Linear.forward (torch/nn/modules/linear.py:134)\n" + FSDP),
    (
        "what torchrun's @record is around",
        DECODES
        + "main (train.py:7)\n"
        + "record.<locals>.wrap.<locals>.wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:367)\n"
        + "<module> (train.py:54)\n",
    ),
    (
        "library that @record is right around",
        DECODES
        + "record.<locals>.wrap.<locals>.wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:367)\n"
        + "<module> (train.py:54)\n",
    ),
    (
        "backward of the user's own function",
        WAITS
        + """
        main.<locals>.F.backward (train.py:45)
        BackwardCFunction.apply (torch/autograd/function.py:325)
        _engine_run_backward (torch/autograd/graph.py:979)
        backward (torch/autograd/__init__.py:395)
        Tensor.backward (torch/_tensor.py:623)
        main (train.py:46)
        """,
    ),
    (
        "data set of the user's, read in the main process",
        DECODES
        + """
        main.<locals>.D.__getitem__ (train.py:50)
        _MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)
        _SingleProcessDataLoaderIter._next_data (torch/utils/data/dataloader.py:785)
        _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)
        main (train.py:51)
        """,
    ),
    (
        "code between two graphs of a compiled model",
        DECODES
        + """
        DisableContext.__call__.<locals>._fn (torch/_dynamo/eval_frame.py:1446)
        main.<locals>.M2.forward (train.py:37)
        Module._call_impl (torch/nn/modules/module.py:1789)
        _TorchDynamoContext.__call__.<locals>.compile_wrapper (torch/_dynamo/eval_frame.py:1166)
        OptimizedModule.__call__ (torch/_dynamo/eval_frame.py:511)
        main (train.py:52)
        """,
    ),
    (
        "a graph that inductor compiled",
        """
        call (/tmp/torchinductor_me/ab/cab.py:40)
        CompiledFxGraph.__call__ (torch/_inductor/output_code.py:700)
        runtime_wrapper (torch/_functorch/_aot_autograd/runtime_wrappers.py:357)
        _TorchDynamoContext.__call__.<locals>.compile_wrapper (torch/_dynamo/eval_frame.py:1166)
        main (train.py:52)
        """,
    ),
    (
        "folder of the user's that is called datasets",
        "load (/home/me/datasets/train.py:3)\nmain (train.py:5)",
    ),
    ("folder of the user's that is called logclient", "f (/home/me/logclient/train.py:3)\nmain (train.py:5)"),
]


@pytest.mark.parametrize("text", [text for _, text in USER], ids=[name for name, _ in USER])
def test_user_code_is_found_whatever_is_around_it(text: str) -> None:
    """A frame of the user's that is nearer than a collective decides; what runs a model is of no part."""
    assert where.part_of(stack(text)) == where.USER_CODE


PARTS = [
    (
        where.COLLECTIVE,
        """
        barrier (torch/distributed/distributed_c10d.py:5356)
        _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:84)
        main (train.py:5)
        """,
    ),
    (
        where.COLLECTIVE,  # a sharded module that waits for its parameters, called by a hook of its own
        """
        AllGather.wait (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:120)
        FSDPParamGroup.wait_for_unshard (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:400)
        FSDPState._pre_forward (torch/distributed/fsdp/_fully_shard/_fsdp_state.py:250)
        fsdp_hook_wrapper (torch/distributed/fsdp/_fully_shard/_fsdp_state.py:60)
        Module._call_impl.<locals>.inner (torch/nn/modules/module.py:1821)
        main (train.py:5)
        """,
    ),
    (
        where.COLLECTIVE,  # a library of torch's that no rule knows, called by one that it does
        "__call__ (torch/_ops.py:1255)\nall_gather (torch/distributed/_functional_collectives.py:9)\nmain (train.py:5)",
    ),
    (where.DATA_LOADING, WAITS + "_try_get_data (torch/utils/data/dataloader.py:1300)\nmain (train.py:51)"),
    (where.DATA_LOADING, DECODES + "_iter (datasets/arrow_dataset.py:9)\nmain (train.py:51)"),
    (
        where.DATA_LOADING,  # a data set from a library
        "open (PIL/Image.py:9)\nImageFolder.__getitem__ (torchvision/datasets/folder.py:9)\n"
        "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)\nmain (train.py:51)",
    ),
    (
        where.COMPILING,
        """
        simplify (sympy/core.py:10)
        GraphLowering.run (torch/_inductor/graph.py:900)
        _compile (torch/_dynamo/convert_frame.py:1200)
        _TorchDynamoContext.__call__.<locals>.compile_wrapper (torch/_dynamo/eval_frame.py:1166)
        main (train.py:52)
        """,
    ),
    (
        where.COMPILING,  # JAX runs the user's function to trace it
        """
        dot_general (jax/_src/lax/lax.py:10)
        loss (train.py:9)
        trace_to_jaxpr (jax/_src/interpreters/partial_eval.py:2000)
        cache_miss (jax/_src/pjit.py:200)
        main (train.py:52)
        """,
    ),
    (
        where.ACCELERATOR,
        """
        ExecuteReplicated.__call__ (jax/_src/interpreters/pxla.py:1300)
        cache_miss (jax/_src/pjit.py:200)
        main (train.py:52)
        """,
    ),
    (where.ACCELERATOR, "synchronize (torch/cuda/__init__.py:1040)\nmain (train.py:52)"),
    (
        where.LOGGER,
        "RingWriter.offer (logclient/shm/ring.py:10)\nRun.log (logclient/run.py:5)\nmain (train.py:5)",
    ),
    (
        where.USER_CODE,
        "loss (train.py:9)\ntrace (jax/_src/interpreters/partial_eval.py:2)\nmain (train.py:52)",
    ),
    (where.USER_CODE, ""),
]


@pytest.mark.parametrize(("part", "text"), PARTS)
def test_part_of_a_library_is_found_behind_what_it_calls(part: str, text: str) -> None:
    """Up to the first frame of the user's own."""
    assert where.part_of(stack(text)) == part


def test_own_frame_is_the_users_innermost() -> None:
    """The user's own frame is none of a library, of generated code, or of the import system."""
    frame = where.own_frame(stack(DECODES + "call (/tmp/torchinductor_me/a/b.py:1)\n" + MODEL + FSDP))
    assert frame is not None and (frame.function, frame.line) == ("Model.forward", 12)
    frozen = where.own_frame(
        stack("exec_module (<frozen importlib._bootstrap_external>:940)\nf (train.py:1)")
    )
    assert frozen is not None and frozen.function == "f"
    assert where.own_frame([]) is None


@pytest.mark.parametrize(
    ("functions", "is_driver"),
    [
        (("_nv045123rm", "nvidia_ioctl"), True),
        (("uvm_ioctl",), True),
        (("amdgpu_fence_wait",), True),
        (("xen_evtchn_do_upcall", "ext4_file_write_iter"), False),
        (("nvme_queue_rq", ""), False),
    ],
)
def test_device_driver_in_a_kernel_stack(functions: tuple[str, ...], is_driver: bool) -> None:
    """NVIDIA's and AMD's, and no disk's."""
    assert where.is_driver(functions) == is_driver

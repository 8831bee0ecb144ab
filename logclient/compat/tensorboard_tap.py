"""Copies what TensorBoard's writers write to a run, as it is written: at its step, with the value of the file.

Runs in the training process, in whatever thread writes. The writers of torch.utils.tensorboard and of tensorboardX both
pass each event through `FileWriter.add_event`; these classes get a wrapper there, when their module is imported or,
where it is loaded, at once.

Invariants:

- the event is written to its file first, as if nothing were here; what fails here is counted, and never reaches the
  program;
- scalars have the value of the file (a float of 32 bits, unless double precision was asked for), at the step of the
  file, which is 0 where none was given;
- images, sounds, histograms and long texts become media values; what else is no scalar is left out, counted, and said
  once for each kind.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from functools import wraps
from threading import local

import logclient
from logclient.encode.media_values import MAX_BINS
from logclient.encode.values import MAX_TEXT
from logclient.guest import foreign
from logclient.run import Run, session_of

from .stand_ins import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from logclient.null import NullRun

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
MARK = "_logclient_tap"  # on a writer: where its events go
_IMAGE_TAG = "/image_summary"  # the end of an image's
_TEXT_TAG = "/text_summary"  # the end of a text's tag
_CLOCK_S = 5.0  # a time of an event that is further from now was given by the program
PURGE = "TensorBoard's purge_step hides no points here: of attempts of a run, the newest counts"
_HPARAMS = "_hparams_"
_PLUGINS = ("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboardX.proto.plugin_hparams_pb2")
_FLOATS = {1: "f", 2: "d"}  # data types of tensors that hold a scalar
_inside = local()  # the call of a writer's that opens other writers

every: Callable[[], Tap | None] = lambda: None  # noqa: E731 - where events of all other writers go


class Call:
    """A call that writes through writers of its own: their events are those of the writer that was called."""

    def __init__(self, tap: Tap, folder: str, main_tag: str = "") -> None:
        self.tap = tap
        self.folder = folder
        self.main_tag = main_tag

    def key(self, folder: str, tag: str) -> str:
        """`add_scalars` writes each curve under one tag to a folder of its own."""
        if self.main_tag:
            for stem in (
                f"{self.main_tag}/",
                f"{self.main_tag.replace('/', '_')}_",
            ):  # tensorboardX's, torch's
                if folder.startswith(f"{self.folder}/{stem}"):
                    return f"{tag}/{folder[len(self.folder) + 1 + len(stem) :]}"
        return tag


class Event:
    """An event for which there is no file."""

    def __init__(self, summary: Any, graph: bool = False) -> None:
        self.summary = summary
        self.graph_def = b"1" if graph else b""
        self.step = 0
        self.wall_time = 0.0


class Tap:
    """The way of some writers' events to one run. Writers of a second folder have its name before their keys."""

    def __init__(self, run: Run | NullRun, log: Callable[[int, dict[str, Any]], None]) -> None:
        self.run = run
        self._log = log
        self._prefixes: dict[str, str] = {}  # folder -> what is before its keys

    def take(self, folder: str, event: Any) -> None:
        """Log what an event holds."""
        call = getattr(_inside, "call", None)
        home = folder if call is None else call.folder
        if getattr(event, "graph_def", b""):
            self.leave_out("graph")
        if getattr(getattr(event, "session_log", None), "status", 0):
            warn(self.run, PURGE)
        summary = getattr(event, "summary", None)
        for value in () if summary is None else summary.value:
            tag, found = _read(value)
            if tag == _HPARAMS:
                if call is None:  # else the method that was called is seen, with its own types
                    self.describe(_settings(found), {})
                continue
            if found is None:
                if tag:
                    self.leave_out(tag)
                continue
            key = tag if call is None else call.key(folder, tag)
            self.log(int(event.step), self.prefix(home) + key, found)
            if abs(event.wall_time - time.time()) > _CLOCK_S:
                warn(self.run, "TensorBoard's walltime is not kept: points have the time of the call")

    def log(self, step: int, key: str, value: Any) -> None:
        """Log one value."""
        self._log(step, {key: value})

    def prefix(self, folder: str) -> str:
        """Nothing for the first folder; for others their name."""
        known = self._prefixes.get(folder)
        if known is None:
            name = os.path.basename(folder.rstrip("/")) or folder
            if f"{name}/" in self._prefixes.values():
                name = folder.strip("/")
            known = self._prefixes[folder] = f"{name}/" if self._prefixes else ""
            if known:
                warn(self.run, f"a further folder of TensorBoard's, {folder}: its keys begin with {known!r}")
        return known

    def describe(self, settings: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Take in hyperparameters as the config, and what came of them as the summary."""
        self.run.config.update({str(key): value for key, value in settings.items()})
        self.run.summary.update({str(key): value for key, value in results.items()})

    def leave_out(self, kind: str) -> None:
        """Count what cannot be kept; said once for each kind."""
        if isinstance(self.run, Run):
            session_of(self.run).counters.left_out.add(1)
        warn(
            self.run,
            f"TensorBoard's {kind} is left out and counted: scalars, texts, images and histograms are kept",
            f"tap {kind}",
        )


_taps: dict[str, Tap] = {}  # id of a run -> its tap, for the run that is open


def of_run(run: Run | NullRun) -> Tap:
    """The tap of a run: one for all writers that log to it, so that their folders have keys of their own."""
    known = _taps.get(run.id)
    if known is None or known.run is not run:
        _taps.clear()
        known = _taps[run.id] = Tap(run, run.log)
    return known


def _read(value: Any) -> tuple[str, Any]:
    """(tag, number or text) of one value; (what it is, None) where it is neither; ("", None) for what is no data."""
    kind = value.WhichOneof("value")
    plugin = value.metadata.plugin_data.plugin_name
    if kind == "simple_value":
        return value.tag, value.simple_value
    if kind == "image":
        return value.tag, logclient.Image(bytes(value.image.encoded_image_string))
    if kind == "audio":
        return value.tag, logclient.Audio(bytes(value.audio.encoded_audio_string))
    if kind == "histo":
        return value.tag, _counts(value.histo)
    if plugin == "hparams":
        return _HPARAMS, value.metadata.plugin_data.content
    if kind == "tensor":
        tensor = value.tensor
        if plugin == "text" and tensor.string_val:
            text = "\n".join(part.decode("utf-8", "replace") for part in tensor.string_val)
            return value.tag.removesuffix(_TEXT_TAG), text_of(text)
        if plugin == "images" and len(tensor.string_val) > 2:
            return value.tag.removesuffix(_IMAGE_TAG), logclient.Image(tensor.string_val[2])
        number = _scalar(tensor)
        if number is not None and plugin in ("", "scalars"):
            return value.tag, number
    return _NAMES.get(plugin or str(kind), plugin or str(kind)), None


def text_of(text: str) -> Any:
    """Return a text as it is, or as a media value where it is too long for a point."""
    return text if len(text.encode("utf-8", "replace")) <= MAX_TEXT else logclient.Text(text)


def _counts(histo: Any) -> Any:
    """Return a histogram of TensorBoard's; empty buckets side by side become one, and so do pairs where there are many.

    Its buckets are some 1,500 of growing widths, of which the outermost reach further than its values.
    """
    counts: list[float] = []
    edges: list[float] = [histo.min]
    for count, limit in zip(histo.bucket, histo.bucket_limit, strict=False):
        edge = min(max(limit, edges[-1]), histo.max)
        if not count and (not counts or not counts[-1]):
            if counts:
                edges[-1] = edge
            continue
        counts.append(count)
        edges.append(edge)
    while len(counts) > MAX_BINS:
        counts = [sum(counts[at : at + 2]) for at in range(0, len(counts), 2)]
        edges = [*edges[:-1:2], edges[-1]]
    return logclient.Histogram(np_histogram=(counts, edges))


def _settings(content: bytes) -> dict[str, Any]:
    """The hyperparameters of an event that a library writes without `add_hparams`, such as Lightning's logger."""
    for name in _PLUGINS:
        plugin = getattr(sys.modules.get(name), "HParamsPluginData", None)
        if plugin is not None:
            found = plugin.FromString(content).session_start_info.hparams
            return {
                key: getattr(each, each.WhichOneof("kind"))
                for key, each in found.items()
                if each.ListFields()
            }
    return {}


_NAMES = {
    "histo": "histogram",
    "images": "image",
    "pr_curves": "PR curve",
    "custom_scalars": "layout of charts",
    "mesh": "mesh",
    "tensor": "tensor",
}


def _scalar(tensor: Any) -> float | None:
    """The number of a tensor that holds one."""
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    for values in (tensor.float_val, tensor.double_val):
        if len(values) == 1:
            return float(values[0])
    code = _FLOATS.get(tensor.dtype)
    if code is None or len(tensor.tensor_content) != struct.calcsize(code):
        return None
    return float(struct.unpack(f"<{code}", tensor.tensor_content)[0])


def guarded(tap: Tap, function: Callable[..., None], *arguments: Any) -> None:
    """Call a function of ours: a failure is counted, and said once."""
    try:
        function(*arguments)
    except Exception as error:
        if not foreign.is_own(error):
            raise
        if isinstance(tap.run, Run):
            session_of(tap.run).counters.left_out.add(1)
        warn(tap.run, f"an event of TensorBoard's is left out and counted: {type(error).__name__}: {error}")


def _tap_of(writer: Any) -> Tap | None:
    """Return the tap of a writer's events; None: they go nowhere but to its file."""
    call = getattr(_inside, "call", None)
    if call is not None:
        return call.tap  # type: ignore[no-any-return]
    mine = getattr(writer, MARK, None)
    return every() if mine is None else mine()


def watch() -> None:
    """See the events of both libraries' writers from now on, whenever they are imported."""
    for name in MODULES:
        if name in sys.modules:
            _wrap(sys.modules[name])
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _wrap(module: ModuleType) -> None:
    files, writers = getattr(module, "FileWriter", None), getattr(module, "SummaryWriter", None)
    if files is None or writers is None or hasattr(files.add_event, MARK):
        return
    files.add_event = with_events(files.add_event)
    writers.add_scalars = _with_call(writers.add_scalars, _main_tag, None)
    writers.add_hparams = _with_call(writers.add_hparams, None, _describe)
    writers.add_embedding = _with_call(
        writers.add_embedding, None, lambda tap, *_: tap.leave_out("embedding")
    )


def with_events(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def add_event(self: Any, event: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, event, *args, **kwargs)
        tap = _tap_of(self)
        if tap is not None:
            guarded(tap, tap.take, str(self.get_logdir()), event)
        return answer

    setattr(add_event, MARK, True)
    return add_event


def _with_call(
    original: Callable[..., Any],
    main_tag: Callable[..., str] | None,
    afterwards: Callable[..., None] | None,
) -> Callable[..., Any]:
    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        tap = _tap_of(self)
        if tap is None or getattr(_inside, "call", None) is not None:
            return original(self, *args, **kwargs)
        folder = str(self._get_file_writer().get_logdir())
        _inside.call = Call(tap, folder, "" if main_tag is None else main_tag(*args, **kwargs))
        try:
            answer = original(self, *args, **kwargs)
        finally:
            _inside.call = None
        if afterwards is not None:
            guarded(tap, afterwards, tap, args, kwargs)
        return answer

    return method


def _main_tag(main_tag: Any = "", *args: Any, **kwargs: Any) -> str:
    return str(main_tag)


def _describe(tap: Tap, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = [
        *args[:2],
        *(kwargs[name] for name in ("hparam_dict", "metric_dict")[len(args) :] if name in kwargs),
    ]
    if len(given) == 2:
        tap.describe(given[0], given[1])


class _Finder:
    """Lets the other finders find the modules, and wraps their classes once they are executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        for finder in _others():
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


def _others() -> Iterator[Any]:
    for finder in sys.meta_path:
        if finder is not _Finder and hasattr(finder, "find_spec"):
            yield finder


class _Loader:
    """Another loader; afterwards the module's classes are wrapped."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

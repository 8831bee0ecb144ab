"""Media values in a call of log: what is taken, what is left out with which sentence, and that scalars always stay."""

from __future__ import annotations

import array
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import logclient
from logclient.encode import film
from logclient.encode.media_values import Value
from logclient.encode.values import LeftOut
from logclient.shm import layout
from logclient.shm.media_ring import TABLE_SIZES

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
MOST = 1 << 20


def packed(value: Value, most: int = MOST) -> tuple[dict[str, Any], bytes]:
    described, payload = value.packed(most)
    return described, bytes(payload)


def why(value: Value, most: int = MOST) -> str:
    with pytest.raises(LeftOut) as caught:
        value.packed(most)
    return str(caught.value)


@pytest.mark.parametrize(
    ("shape", "layout_", "expected"),
    [
        ((4, 5), None, "HW"),
        ((4, 5, 3), None, "HWC"),
        ((3, 4, 5), None, "CHW"),
        ((3, 5, 3), None, "HWC"),
        ((3, 5, 3), "CHW", "CHW"),
        ((1, 4, 5), None, "CHW"),
        ((4, 5, 4), None, "HWC"),
    ],
)
def test_an_image_may_have_its_channels_first_or_last(
    shape: tuple[int, ...], layout_: str | None, expected: str
) -> None:
    """The shape tells, and where it does not, arrays count as HWC; bytes are those of the rows."""
    pixels = np.arange(np.prod(shape), dtype="u1").reshape(shape)
    described, payload = packed(logclient.Image(pixels, layout=layout_))
    assert described["layout"] == expected and described["shape"] == shape
    assert described["dtype"] == "u1" and payload == pixels.tobytes()


def test_arrays_of_any_order_and_type_are_copied_as_rows() -> None:
    """Views that are not contiguous, big-endian numbers, bools and other buffers give the same elements."""
    whole = np.arange(48, dtype="f4").reshape(6, 8)
    for view in (whole[::2, ::-1], whole.T, np.asfortranarray(whole), whole.astype(">f4")):
        described, payload = packed(logclient.Image(view))
        assert payload == np.ascontiguousarray(view, dtype="<f4").tobytes()
        assert described["dtype"] == "f4"
    assert packed(logclient.Image(np.eye(3, dtype=bool)))[0]["dtype"] == "b1"
    numbers = array.array("h", [1, 2, 3])
    described, payload = packed(logclient.Histogram(numbers))
    assert described["dtype"] == "i2" and payload == numbers.tobytes()
    described, payload = packed(logclient.Histogram([1, 2.5, True]))
    assert described["dtype"] == "f8" and payload == np.array([1, 2.5, 1]).tobytes()


def test_tensors_are_read_without_waiting_for_a_device() -> None:
    """CPU tensors share their memory with the copy, those with gradients and of 16 bits too; others are refused."""
    torch = pytest.importorskip("torch")
    pixels = torch.rand(3, 3, 3)
    described, payload = packed(logclient.Image(pixels.requires_grad_()))
    assert described["layout"] == "CHW" and payload == pixels.detach().numpy().tobytes()
    assert packed(logclient.Histogram(torch.ones(4, dtype=torch.bfloat16)))[0]["dtype"] == "f4"
    assert packed(logclient.Histogram(torch.ones(4, dtype=torch.float16)))[0]["dtype"] == "f2"
    assert "device meta" in why(logclient.Image(torch.empty(3, 4, 4, device="meta")))
    assert "layout" in why(logclient.Image(torch.eye(3).to_sparse()))


def test_pil_images_of_every_mode_become_grey_or_colour() -> None:
    """A palette becomes colours, with transparency where it has some."""
    image = pytest.importorskip("PIL.Image")
    for mode, channels in (("L", 1), ("RGB", 3), ("RGBA", 4), ("P", 3), ("1", 3), ("LA", 4), ("CMYK", 3)):
        described, payload = packed(logclient.Image(image.new(mode, (5, 4))))
        shape = (4, 5) if channels == 1 else (4, 5, channels)
        assert described["shape"] == shape and len(payload) == 20 * channels


def test_files_are_handed_over_by_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is one of the working directory that the value was made in; nothing is read in the call."""
    monkeypatch.chdir(tmp_path)
    value = logclient.Image("a.png", "caption")
    monkeypatch.chdir("/")
    assert packed(value) == (
        {"kind": "image", "caption": "caption", "form": "path"},
        b"%s/a.png" % bytes(tmp_path),
    )
    described, payload = packed(logclient.File(tmp_path / "x.bin"))
    assert described["name"] == "x.bin" and payload == bytes(tmp_path / "x.bin")
    assert packed(logclient.File(b"data", "d.bin")) == (
        {"kind": "file", "form": "bytes", "name": "d.bin"},
        b"data",
    )
    assert packed(logclient.Image(PNG))[1] == PNG


def test_a_large_array_is_sampled_for_a_histogram_and_left_out_as_an_image() -> None:
    """Each n-th value is taken, and n is told; an image of which a part is missing is none."""
    values = np.arange(1_000_000, dtype="f8")
    described, payload = packed(logclient.Histogram(values), 1 << 20)
    taken = np.frombuffer(payload)
    assert described["every"] == 8 and (taken == values[::8]).all()
    described, payload = packed(logclient.Histogram(values.reshape(1000, 1000).T), 1 << 20)
    assert described["every"] == 8 and len(payload) == 1_000_000
    described, payload = packed(logclient.Histogram(array.array("d", values)), 1 << 20)
    assert described["every"] == 8 and (np.frombuffer(payload) == values[::8]).all()
    assert "at most" in why(logclient.Image(values.reshape(1000, 1000)), 1 << 20)
    described, payload = packed(logclient.Histogram(values), 16 << 20)
    assert described["every"] == 8, "8 MB would take all the time that a call may take"
    described, payload = packed(logclient.Histogram(values.astype("f4")), 16 << 20)
    assert "every" not in described and len(payload) == 4_000_000


def test_cells_of_a_table_are_plain_values_or_texts() -> None:
    """What JSON does not hold becomes its text; short rows are filled up."""
    rows = [[1, 2.5, "x", None, True], [float("nan"), 1 << 80, np.float32(0.5), object], ["\ud800"]]
    described, payload = packed(logclient.Table(rows, ["a", "b", "c", "d", "e"]))
    table = json.loads(payload)
    assert described["rows"] == 3 and described["columns"] == 5
    assert table["columns"] == ["a", "b", "c", "d", "e"]
    assert table["rows"][0] == rows[0]
    assert table["rows"][1] == ["nan", str(1 << 80), 0.5, "<class 'object'>", None]
    assert table["rows"][2] == ["\\ud800", None, None, None, None]
    frame = pytest.importorskip("pandas").DataFrame({"x": [1, 2], "y": ["a", "b"]})
    assert json.loads(packed(logclient.Table(frame))[1]) == {
        "columns": ["x", "y"],
        "rows": [[1, "a"], [2, "b"]],
    }
    assert "cells" in why(logclient.Table([[0] * 1000] * 1000))
    assert "under 1 columns" in why(logclient.Table([[1, 2]], ["a"]))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (logclient.Image(np.zeros((2, 3, 5))), "1, 3 or 4 channels"),
        (logclient.Image(np.zeros((0, 3))), "shape"),
        (logclient.Image(np.zeros(3)), "shape"),
        (logclient.Image(np.zeros((3, 3)), layout="WHC"), "layout"),
        (logclient.Image(np.array([["a"]])), "type <U1"),
        (logclient.Image(object()), "no array"),
        (logclient.Image(7), "no array"),
        (logclient.Histogram(["a"]), "no numbers"),
        (logclient.Histogram([1], bins=0), "bins"),
        (logclient.Histogram(np_histogram=([1, 2], [1, 2])), "one edge more"),
        (logclient.Text(5), "takes a str"),
        (logclient.File(5), "takes a path or bytes"),
        (logclient.Audio(np.zeros(8)), "without their rate"),
        (logclient.Audio(np.zeros((2, 2, 2)), 8000), "N x channels"),
        (logclient.Video(np.zeros((2, 4, 4, 3))), "frames "),
        (logclient.Figure(5), "matplotlib or plotly"),
    ],
)
def test_what_cannot_be_stored_is_left_out_with_a_sentence(value: Value, words: str) -> None:
    """The sentence names what is wrong; constructors raise nothing."""
    assert words in why(value)


class Foreign:
    """An array whose conversion raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __array__(self, *arguments: Any, **more: Any) -> Any:
        raise self.error("no")

    def __fspath__(self) -> str:
        raise self.error("no")

    def __str__(self) -> str:
        raise self.error("no")


def test_images_in_cells_of_a_table_travel_with_it_as_far_as_there_is_room() -> None:
    """Each has a description and bytes; those that do not fit, or cannot be read, are counted; the table stays."""
    pixels = [np.full((8, 8), number, "u1") for number in range(4)]
    rows = [[number, logclient.Image(each, f"no {number}")] for number, each in enumerate(pixels)]
    rows.append([4, logclient.Image(object())])
    described, payload = packed(logclient.Table([*rows, [5, None]], columns=["n", "image"]))
    assert (described["form"], described["images"], described["omitted"]) == ("images", 5, 1)
    head, table = TABLE_SIZES.unpack_from(payload)
    listed = json.loads(payload[16 : 16 + head])
    assert [each.get("caption") for each in listed] == ["no 0", "no 1", "no 2", "no 3", None]
    assert "no array" in listed[4]["lost"]
    assert json.loads(payload[16 + head :][:table])["rows"][2] == [2, {"image": 2}]
    assert payload[16 + head + table :] == b"".join(each.tobytes() for each in pixels)
    described, payload = packed(logclient.Table(rows), 1500)
    assert 1 <= described["omitted"] < 5 and len(payload) <= 1500
    assert "bytes; at most" in why(logclient.Table(rows), 200)
    many = logclient.Image(pixels[0])
    assert packed(logclient.Table([[many]] * 1002))[0]["omitted"] == 2


def test_frames_are_taken_as_far_as_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that each n-th, so that the film is whole; the others are counted. Without PyAV a sentence says so."""
    monkeypatch.setattr(film, "_FOUND", [True])
    frames = np.arange(10 * 5 * 6 * 3, dtype="u1").reshape(10, 5, 6, 3)
    described, payload = packed(logclient.Video(frames, "c", fps=8))
    assert described == {
        "kind": "video", "caption": "c", "form": "frames", "shape": (10, 5, 6, 3), "layout": "THWC", "fps": 8.0
    }  # fmt: skip
    assert payload == frames.tobytes()
    described, payload = packed(logclient.Video(frames.transpose(0, 3, 1, 2), fps=8), 300)
    assert (described["layout"], described["shape"], described["omitted"]) == ("TCHW", (3, 3, 5, 6), 7)
    assert described["fps"] == 2 and payload == frames.transpose(0, 3, 1, 2)[::4].tobytes()
    assert packed(logclient.Video(frames[..., 0], fps=1))[0]["layout"] == "THW"
    assert "number a second" in why(logclient.Video(frames))
    assert "expected uint8" in why(logclient.Video(frames.astype("f4"), fps=1))
    assert "at most 40 fit" in why(logclient.Video(frames, fps=1), 40)
    assert "not 1, 3 or 4 channels" in why(logclient.Video(np.zeros((2, 5, 5, 5), "u1"), fps=1))
    monkeypatch.setattr(film, "_FOUND", [False])
    assert "pip install av" in why(logclient.Video(frames, fps=1))


def test_scalars_stay_when_their_media_values_are_left_out(run_dir: Path, patient: None) -> None:
    """Values that cannot be read, are too large, or raise cost one point each, counted and said; log raises nothing."""
    run = logclient.init(quiet=True, media_bytes=1 << 20)
    bad = [
        logclient.Image(np.zeros((2000, 2000), "u1")),
        logclient.Image(Foreign(ZeroDivisionError)),
        logclient.Table([[Foreign(ZeroDivisionError)]]),
        logclient.Text("x", caption=Foreign(ValueError)),  # type: ignore[arg-type]
        logclient.Text("x" * (1 << 20)),
        logclient.Histogram(),
    ]
    for step, value in enumerate(bad):
        run.log(step, {"loss": 1.0, "bad": value, "nested": {"text": logclient.Text(f"good {step}")}})
    status = run.status()
    assert (status["accepted"], status["refused"], status["left_out"]) == (len(bad), 0, len(bad))
    assert any("'bad' is left out" in line for line in status["notices"])
    assert (status["media"]["over_budget"], status["media"]["refused"]) == (2, 4)
    assert run.finish(60)
    whole = {"accepted": len(bad), "stored": len(bad), "lost": 0, "forgotten": 0, "damaged": 0}
    assert run.status()["media"] == {**whole, "over_budget": 2, "refused": 4}
    read = logclient.read(run_dir)[-1]
    assert list(read.series("loss").value) == [1.0] * len(bad)
    assert [each.load() for each in read.media["nested::text"]] == [
        f"good {step}" for step in range(len(bad))
    ]


def test_nothing_is_reserved_before_the_first_value_and_once_then(run_dir: Path, patient: None) -> None:
    """Its constructor reserves where a run is open; another one and `log` find the memory there."""
    logclient.Image(np.zeros((2, 2)))
    run = logclient.init(quiet=True, media_bytes=2 << 20)
    folder = Path(run._session.shm_dir.path)  # type: ignore[union-attr]
    run.log(0, {"a": 1.0})
    assert not list(folder.glob("*.media"))
    value = logclient.Text("x")
    (made,) = folder.glob("*.media")
    assert made.stat().st_size == 2 << 20 and made.stat().st_mode & 0o777 == 0o600
    run.log(1, {"a": value})
    logclient.Text("y")
    assert list(folder.glob("*.media")) == [made]
    assert run.finish(60)


def test_memory_follows_the_runs_share_of_the_mount(run_dir: Path, patient: None) -> None:
    """Where the run's share is short the memory is smaller, and where nearly nothing is left values are left out."""
    run = logclient.init(quiet=True)
    session = run._session  # type: ignore[union-attr]
    session.shm_dir.facts["budget_bytes"] = session.shm_dir.taken_bytes() + (6 << 20)
    logclient.Text("x")
    (made,) = Path(session.shm_dir.path).glob("*.media")
    assert made.stat().st_size == 3 << 20
    assert run.finish(60)
    run = logclient.init(quiet=True)
    session = run._session  # type: ignore[union-attr]
    session.shm_dir.facts["budget_bytes"] = session.shm_dir.taken_bytes() + (1 << 20)
    run.log(0, {"a": 1, "text": logclient.Text("x")})
    assert run.status()["left_out"] == 1
    assert any("no shared memory for media values" in line for line in run.status()["notices"])
    assert run.finish(60)


class Interrupt(Exception):
    """What a handler of the user's raises."""


def test_values_of_threads_handlers_and_interrupted_calls_are_counted_exactly(
    run_dir: Path, patient: None
) -> None:
    """A handler at 1 kHz that logs, and raises each tenth time, costs no other value, and none is doubled."""
    run = logclient.init(quiet=True)
    stop = threading.Event()
    pixels = np.zeros((32, 32), "u1")
    offered = {"calls": 0, "raised": 0, "handler": 0}

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            return
        offered["handler"] += 1
        try:
            run.log(offered["handler"], {"of_handler": logclient.Image(pixels)})
        except Interrupt:  # of a signal that came while this one was handled: it ends both calls
            offered["raised"] += 1
            raise
        if offered["handler"] % 10 == 0 and is_inside[0]:
            is_inside[0] = False
            raise Interrupt

    of_thread, is_inside = [0], [False]

    def log_beside() -> None:
        while not stop.is_set():
            of_thread[0] += 1
            run.log(of_thread[0], {"of_thread": logclient.Image(pixels)})

    thread = threading.Thread(target=log_beside)
    before = signal.signal(signal.SIGVTALRM, handle)
    thread.start()
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            offered["calls"] += 1
            is_inside[0] = True
            run.log(offered["calls"], {"of_main": logclient.Image(pixels)})
            is_inside[0] = False
        except Interrupt:
            offered["raised"] += 1
    stop.set()
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
    thread.join()
    file: Any = run._session.encoder.media.file  # type: ignore[union-attr]
    _, accepted = file.progress()
    left_out = run.status()["left_out"]
    tried = offered["calls"] + offered["handler"] + of_thread[0]
    # a call that the handler's exception ended is one that its caller knows of: it may have committed or not
    assert tried - offered["raised"] <= accepted + left_out <= tried
    assert accepted > 50
    words = file.words
    assert words[layout.lane_header(1) + layout.SEQ] == accepted
    assert run.finish(60)
    found = logclient.read(run_dir)[-1].media
    assert len(found) == accepted, "each accepted value has one reference"


def test_a_forked_child_has_memory_of_its_own(run_dir: Path, patient: None) -> None:
    """Parent and child log at the same time, and each value is stored once, with its own pixels."""
    run = logclient.init(quiet=True)
    run.log(0, {"parent": logclient.Text("before")})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for step in range(20):
                run.log(step, {"child": logclient.Text(f"child {step}")})
            code = 0 if run.finish(60) and not run.status()["left_out"] else 2
        finally:
            os._exit(code)
    for step in range(20):
        run.log(step, {"parent": logclient.Text(f"parent {step}")})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run.finish(60)
    found = logclient.read(run_dir)[-1].media
    assert [each.load() for each in found["child"]] == [f"child {step}" for step in range(20)]
    texts = {each.load() for each in found["parent"]}
    assert texts == {"before", *(f"parent {step}" for step in range(20))} and len(found["parent"]) == 21


def test_media_values_are_loaded_when_asked_for() -> None:
    """`import logclient` does not load them; each public name leads there."""
    assert logclient.Image is sys.modules["logclient.encode.media_values"].Image
    for name in logclient._MEDIA:
        assert issubclass(getattr(logclient, name), Value) and name in logclient.__all__

"""Raw values as blobs and references: pixels, counts, types of files, and descriptions that nobody should believe."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest

from logclient.shm.media_ring import TABLE_SIZES, RawValue
from logclient_backend.agent.media import encoded, pixels
from logclient_backend.agent.media.encoded import encode, mime_of
from logclient_backend.agent.media.pixels import BadValue, histogram, png
from logclient_backend.runs.media_reference import MAX_BYTES, Reference, blob_path, parse

Image = pytest.importorskip("PIL.Image")


def value(payload: bytes, **described: Any) -> RawValue:
    made = RawValue(1, 0)
    made.description = json.dumps({"key": "k", **described}).encode()
    made.payload = payload
    return made


def shown(data: bytes) -> Any:
    """Return the pixels that another program reads from a PNG."""
    image = Image.open(io.BytesIO(data))
    image.verify()
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.fixture(params=["numpy", "without"])
def maybe_numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With NumPy, whatever the size, and without it."""
    if request.param == "without":
        monkeypatch.setattr(pixels, "numpy", lambda: None)
    monkeypatch.setattr(pixels, "_FEW", 0)
    return str(request.param)


@pytest.mark.parametrize("layout", ["HW", "HWC", "CHW"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "f2", "b1", "i4", "u2"])
def test_a_png_shows_the_pixels_that_were_logged(dtype: str, layout: str, maybe_numpy: str) -> None:
    """Every type and order is taken: floats as 0 to 1, bools as black and white, wider ints clipped and counted."""
    shape = {"HW": (7, 5), "HWC": (7, 5, 3), "CHW": (3, 7, 5)}[layout]
    random = np.random.default_rng(1)
    whole = random.integers(0, 256, shape)
    array = {"f": whole / 255, "b": whole > 99, "i": whole * 2 - 100, "u": whole}[dtype[0]].astype(
        "?" if dtype == "b1" else f"<{dtype}"
    )
    data, said = png(array.tobytes(), dtype, shape, layout, None, 6)
    expected = np.floor(array.astype("f8") * (255 if dtype[0] in "fb" else 1) + 0.5)
    outside = int(((array < 0) | (array > (1 if dtype[0] in "fb" else 255))).sum())
    if layout == "CHW":
        expected = expected.transpose(1, 2, 0)
    assert (shown(data) == np.clip(expected, 0, 255)).all()
    assert (said["width"], said["height"], said["channels"]) == (5, 7, 1 if layout == "HW" else 3)
    assert said.get("clipped", 0) == outside


def test_what_is_no_number_is_black_and_counted(maybe_numpy: str) -> None:
    """A range maps its ends to black and white."""
    array = np.array([[math.nan, math.inf, -1.0], [0.0, 1.0, 5.0]], "f4")
    data, said = png(array.tobytes(), "f4", (2, 3), "HW", (-1.0, 1.0), 6)
    assert shown(data).tolist() == [[0, 0, 0], [128, 255, 255]]
    assert (said["nonfinite"], said["clipped"]) == (2, 1)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "b1"])
def test_a_histogram_counts_each_value_once(dtype: str, maybe_numpy: str) -> None:
    """The counts of the finite values are those of numpy.histogram; the others are counted apart."""
    values = np.random.default_rng(2).normal(size=5000) * 50
    array = (values > 0 if dtype == "b1" else np.abs(values) if dtype == "u1" else values).astype(
        "?" if dtype == "b1" else dtype
    )
    if dtype[0] == "f":
        array[:3] = [math.nan, math.inf, -math.inf]
    found = histogram(array.tobytes(), dtype, 32)
    finite = array[np.isfinite(array.astype("f8"))].astype("f8")
    counts, edges = np.histogram(finite, 32)
    assert abs(np.array(found["counts"]) - counts).sum() <= 4  # a value on an edge may fall on its other side
    assert sum(found["counts"]) == finite.size and found["values"] == 5000
    assert found["nonfinite"] == 5000 - finite.size
    assert (found["low"], found["high"]) == (edges[0], edges[-1])


@pytest.mark.parametrize("values", [[], [math.nan], [3.0, 3.0], [1e308, -1e308], [1e300], [5e-324, 0.0]])
def test_odd_histograms_have_finite_limits(values: list[float], maybe_numpy: str) -> None:
    """Nothing, nothing finite, one value, and limits whose distance is no number."""
    found = histogram(np.array(values).tobytes(), "f8", 8)
    assert math.isfinite(found["high"] - found["low"]) and found["low"] < found["high"]
    assert sum(found["counts"]) == sum(map(math.isfinite, values)) and found["values"] == len(values)


def test_counts_that_are_given_are_checked_and_kept() -> None:
    """Even edges are two numbers; others stay; what cannot be is refused."""
    good = encode(
        value(b'{"counts": [1, 2], "edges": [0, 1, 2]}', kind="histogram", form="counts"), is_hurried=False
    )
    assert good.fields == {"low": 0.0, "high": 2.0, "counts": [1, 2], "values": 3, "nonfinite": 0}
    odd = encode(
        value(b'{"counts": [1, 2], "edges": [0, 1, 9]}', kind="histogram", form="counts"), is_hurried=False
    )
    assert odd.fields["edges"] == [0, 1, 9]
    for bad in (b"x", b"{}", b'{"counts": [1], "edges": [1, 0]}', b'{"counts": [NaN], "edges": [0, 1]}'):
        with pytest.raises(BadValue):
            encode(value(bad, kind="histogram", form="counts"), is_hurried=False)


def test_a_histogram_lies_in_its_reference_where_it_fits() -> None:
    """Then a chart over steps reads references alone; one of many bins is a blob."""
    data = np.arange(100_000.0).tobytes()
    few = encode(value(data, kind="histogram", form="values", dtype="f8", bins=64, every=3), is_hurried=False)
    assert few.data is None and len(few.fields["counts"]) == 64 and few.fields["every"] == 3
    assert parse(Reference("histogram", fields=few.fields).text()) == Reference(
        "histogram", fields=few.fields
    )
    many = encode(value(data, kind="histogram", form="values", dtype="f8", bins=512), is_hurried=False)
    if many.data is None:
        assert len(Reference("histogram", fields=many.fields).text()) <= MAX_BYTES
    else:
        assert sum(json.loads(many.data)["counts"]) == 100_000


def test_samples_become_a_wav_that_others_read() -> None:
    """Floats are clipped to 16 bits, ints of 16 bits stay, channels lie beside each other."""
    import wave

    samples = np.array([[0.0, 0.5], [-1.0, 2.0], [math.nan, -3.0]], "f4")
    described = {"kind": "audio", "form": "samples", "dtype": "f4", "channels": 2, "rate": 8000}
    made = encode(value(samples.tobytes(), **described), is_hurried=False)
    assert made.mime == "audio/wav" and made.data is not None and made.fields["rate"] == 8000
    with wave.open(io.BytesIO(made.data)) as file:
        assert (file.getnchannels(), file.getframerate(), file.getsampwidth()) == (2, 8000, 2)
        found = np.frombuffer(file.readframes(3), "<i2").tolist()
    assert found == [0, 16383, -32767, 32767, 0, -32768]
    whole = np.array([1, -2], "i2").tobytes()
    assert encode(value(whole, **{**described, "dtype": "i2"}), is_hurried=False).data[44:] == whole  # type: ignore[index]
    with pytest.raises(BadValue):
        encode(value(b"abc", **described), is_hurried=False)


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"kind": "image"},
        {"kind": "image", "form": "pixels"},
        {"kind": "image", "form": "pixels", "shape": [2, 2], "layout": "HW", "dtype": "u1"},
        {"kind": "image", "form": "pixels", "shape": [0, 4], "layout": "HW", "dtype": "u1"},
        {"kind": "image", "form": "pixels", "shape": [-1, -4], "layout": "HW", "dtype": "u1"},
        {"kind": "image", "form": "pixels", "shape": [1 << 40, 1 << 40], "layout": "HW", "dtype": "u1"},
        {"kind": "image", "form": "pixels", "shape": [2, 2], "layout": "HWC", "dtype": "u1"},
        {"kind": "image", "form": "pixels", "shape": [5, 1], "layout": "HW", "dtype": "O8"},
        {
            "kind": "image",
            "form": "pixels",
            "shape": [5, 1],
            "layout": "HW",
            "dtype": "u1",
            "range": [1.0, 0.0],
        },
        {"kind": "image", "form": "pixels", "shape": [5, 1], "layout": "HW", "dtype": "u1", "range": "x"},
        {"kind": "histogram", "form": "values", "dtype": "f8", "bins": 1 << 40},
        {"kind": "histogram", "form": "values", "dtype": "f8", "bins": 5},
        {"kind": "program", "form": "bytes"},
        {"kind": "image", "form": "pickle"},
    ],
)
def test_a_description_that_does_not_fit_its_payload_is_refused(
    described: dict[str, Any], maybe_numpy: str
) -> None:
    """Shared memory is written by a program that may be broken: nothing in it is believed unchecked."""
    with pytest.raises((BadValue, ValueError, TypeError, LookupError)):
        encode(value(b"abcde", **described), is_hurried=True)


def test_a_type_is_told_by_first_bytes_and_belongs_to_its_kind() -> None:
    """A page that calls itself an image is octets, and so is a script."""
    assert mime_of(b"\x89PNG\r\n\x1a\nrest", "image") == "image/png"
    assert mime_of(b"RIFF\0\0\0\0WAVE", "audio") == "audio/wav"
    assert mime_of(b"\0\0\0\x20ftypisom", "video") == "video/mp4"
    assert mime_of(b"GIF89a", "video") == "image/gif"
    assert mime_of(b" <svg onload=x>", "image") == "image/svg+xml"
    assert mime_of(b"RIFF\0\0\0\0WAVE", "image") == mime_of(b"<html>", "image") == "application/octet-stream"
    assert mime_of(b"", "file") == "application/octet-stream"
    text = encode(value(b"<script>", kind="text", form="bytes"), is_hurried=False)
    assert text.mime == "text/plain" and text.fields["preview"] == "<script>"


def test_references_are_bounded_and_strictly_read() -> None:
    """A reference that is too long loses what explains least; an odd one is none."""
    whole = Reference(
        "image", "ab" * 32, 7, "image/png", fields={"width": 3, "caption": "c", "counts": [1, 2.5]}
    )
    assert parse(whole.text()) == whole
    long = Reference("image", "ab" * 32, 7, "image/png", fields={"width": 3, "caption": "ü" * 4000})
    assert len(long.text().encode()) <= MAX_BYTES
    assert parse(long.text()) == Reference("image", "ab" * 32, 7, "image/png", fields={"width": 3})
    lost = parse('{"kind": "image", "lost": "no room", "caption": {"nested": 1}, "width": null}')
    assert lost == Reference("image", lost="no room")
    for odd in (
        *(
            None,
            1.0,
            "",
            "x",
            "[]",
            '{"kind": 1}',
            '{"kind": "IMAGE"}',
            "[" * 4000,
            '{"kind": "image"' + " " * 5000 + "}",
        ),
        '{"kind": "image", "sha256": "../../etc/passwd", "bytes": 1, "mime": "image/png"}',
        '{"kind": "image", "sha256": "%s", "bytes": -1, "mime": "image/png"}' % ("a" * 64),
        '{"kind": "image", "sha256": "%s", "bytes": 1, "mime": "text/html; x"}' % ("a" * 64),
        '{"kind": "image", "sha256": "%s\\n", "bytes": 1, "mime": "image/png"}' % ("a" * 64),
    ):
        assert parse(odd) is None, odd
    with pytest.raises(ValueError, match="no SHA-256"):
        blob_path("/folder", "../x")


def test_a_table_with_images_is_believed_as_far_as_its_sizes_are_right() -> None:
    """Images become PNGs, a broken one a reason in its cell; sizes and numbers that are wrong give up the table."""
    table = json.dumps(
        {"columns": ["a"], "rows": [[{"image": 0}], [{"image": 1}], [{"image": 2}], ["x"]]}
    ).encode()
    good = {"form": "pixels", "dtype": "u1", "shape": [2, 2], "layout": "HW", "bytes": 4}
    listed = json.dumps([good, {**good, "shape": [9, 9]}]).encode()
    payload = TABLE_SIZES.pack(len(listed), len(table)) + listed + table + bytes(8)
    made = encode(value(payload, kind="table", form="images"), is_hurried=True)
    assert made.data == table and isinstance(made.images[0], encoded.Encoded)
    assert shown(made.images[0].data or b"").shape == (2, 2) and "no image of shape" in str(made.images[1])
    rows = json.loads(encoded.with_images(table, [{"kind": "image", "sha256": "a"}, {"kind": "image"}]))[
        "rows"
    ]
    assert (
        rows[0] == [{"image": {"kind": "image", "sha256": "a"}}]
        and "takes 2 images" in rows[2][0]["image"]["lost"]
    )
    for bad in (b"", bytes(16), TABLE_SIZES.pack(1 << 60, 1) + b"[]", payload[:40]):
        with pytest.raises(BadValue):
            encode(value(bad, kind="table", form="images"), is_hurried=True)
    for bad in (b"{}", b'{"rows": [[{"image": "x"}]]}', b'{"rows": 3}'):
        with pytest.raises(BadValue):
            encoded.with_images(bad, [])


@pytest.mark.parametrize("layout", ["THW", "THWC", "TCHW"])
def test_frames_become_a_film_of_the_same_pictures(layout: str) -> None:
    """In either order of channels, also with sides of odd length; a description that is wrong is refused."""
    av = pytest.importorskip("av")
    whole = np.zeros((6, 33, 49, 3), "u1")
    for number in range(6):
        whole[number, :, : 8 * number] = (250, 10, 60) if layout != "THW" else 250
    frames = {"THW": whole[..., 0], "THWC": whole, "TCHW": whole.transpose(0, 3, 1, 2)}[layout]
    about = {"kind": "video", "form": "frames", "shape": list(frames.shape), "layout": layout, "fps": 5}
    made = encode(value(frames.tobytes(), **about), is_hurried=False)
    assert made.mime == "video/mp4" and mime_of(made.data or b"", "video") == "video/mp4"
    assert made.fields == {"fps": 5, "frames": 6, "width": 49, "height": 33}
    decoded = av.open(io.BytesIO(made.data or b"")).decode(video=0)
    read = np.array([frame.to_ndarray(format="rgb24") for frame in decoded])
    assert read.shape == (6, 34, 50, 3)
    assert np.abs(read[:, :33, :49].astype(int) - whole)[:, :, ::5].mean() < 5
    for wrong in (
        {"shape": [6, 33]},
        {"shape": None},
        {"fps": 0},
        {"layout": "X"},
        {"shape": [1 << 40, 1, 1]},
    ):
        with pytest.raises(BadValue):
            encode(value(frames.tobytes(), **{**about, **wrong}), is_hurried=False)


def test_every_kind_of_the_client_is_known() -> None:
    """The agent stores each kind that the client describes."""
    from logclient.encode import media_values

    kinds = {
        each.kind
        for each in vars(media_values).values()
        if isinstance(each, type) and issubclass(each, media_values.Value) and each.kind
    }
    assert kinds <= set(encoded._KINDS)

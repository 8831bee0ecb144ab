"""Points as lines or tables: csv, jsonl and parquet, written and read back without loss.

=======  =========================================================================================================
jsonl    an object a line: step, key, value, time, stream, rank; NaN and infinities are "nan", "inf", "-inf"
csv      the same as columns, with a header; no rank is an empty field
parquet  the same as columns; `value` is a float64 (empty for a text), `text` holds texts and the digits of ints that
         a float64 cannot hold; `time` is a timestamp in UTC
=======  =========================================================================================================

`time` is in whole nanoseconds since 1970: the only form that loses nothing. Floats are the shortest digits that give
the same float again, ints have all their digits, and one NaN is like another. A line alone does not tell a text "nan"
from NaN, or a float that was rounded when it was logged: the shapes in `run.json` do, and reading back takes each
value by its type code.

Does not: know runs or files; it is handed a stream of bytes.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from logclient.errors import BadArgument, LogclientError
from logclient.shm.columns import read_column
from logclient.shm.record import FLOATS

from .order import Part
from .strict import ODD_FLOATS, loads

if TYPE_CHECKING:
    from logclient.shm.record import Value

FORMATS = ("csv", "jsonl", "parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets run, not show
FIELDS = ("step", "key", "value", "time", "stream", "rank")
BATCH_POINTS = 1 << 16
_INT64 = 1 << 63
_EXACT = 1 << 53  # ints up to here are floats too


class Row(NamedTuple):
    """A point as it was read; `value` turns into a Python value once its type code is known."""

    number: int  # of the line or row, for errors
    step: int
    key: str
    value: Callable[[str], Value]
    time: int
    stream: str
    rank: int | None


class BadPoints(LogclientError):
    """A line that is none of ours; says which."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number:,}: {reason}")
        self.number = number
        self.reason = reason


class Writer(Protocol):
    """Takes points in the canonical order."""

    def write(self, part: Part) -> int:
        """Write all values of these records; how many."""

    def close(self) -> None:
        """Write what is left; the stream stays open."""


def writer(format: str, out: IO[bytes], *, guards_cells: bool = False) -> Writer:
    """`BadArgument` where the format's library is not installed. `guards_cells`: of csv, see `CsvWriter`."""
    if guards_cells and format == "csv":
        return CsvWriter(out, guards_cells=True)
    made: dict[str, Callable[[IO[bytes]], Writer]]
    made = {"csv": CsvWriter, "jsonl": JsonWriter, "parquet": ParquetWriter}
    return made[format](out)


def rows(format: str, source: IO[bytes]) -> Iterator[Row]:
    """All points of a file; `BadPoints` for the first that is none."""
    return {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}[format](source)


def is_whole(values: Any) -> bool:
    """Are all of these floats finite?"""
    return all(map(math.isfinite, values))


class JsonWriter:
    """One object a line, ASCII."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._keys: dict[str, str] = {}

    def write(self, part: Part) -> int:
        columns = part.columns
        cut = slice(part.start, part.stop)
        cells = []
        for name, code, column in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True):
            middle = self._keys.get(name)
            if middle is None:
                middle = self._keys[name] = f',"key":{json.dumps(name)},"value":'
            cells.append([middle + text for text in _json_texts(code, read_column(code, column[cut]))])
        rank = "null" if columns.rank is None else columns.rank
        end = f',"stream":"{part.stream.hex()}","rank":{rank}}}\n'
        lines = []
        for step, time, *values in zip(columns.step[cut], columns.time[cut], *cells, strict=True):
            for value in values:
                lines.append(f'{{"step":{step}{value},"time":{time}{end}')
        self._out.write("".join(lines).encode("ascii"))
        return len(lines)

    def close(self) -> None:
        pass


def _json_texts(code: str, values: Any) -> list[str]:
    if code == "s":
        return [json.dumps(value) for value in values]
    if code == "b":
        return ["true" if value else "false" for value in values]
    if code in FLOATS and not is_whole(values):
        return [repr(value) if math.isfinite(value) else f'"{value!r}"' for value in values]
    return list(map(repr, values))


class CsvWriter:
    """Comma-separated, LF, quoted only where needed.

    With `guards_cells` a key or text that a spreadsheet would take for a formula gets an apostrophe before it.
    """

    def __init__(self, out: IO[bytes], *, guards_cells: bool = False) -> None:
        self._out = out
        self._cell = _guarded if guards_cells else _quoted
        self._keys: dict[str, str] = {}
        out.write((",".join(FIELDS) + "\n").encode())

    def write(self, part: Part) -> int:
        columns = part.columns
        cut = slice(part.start, part.stop)
        cells = []
        for name, code, column in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True):
            middle = self._keys.get(name)
            if middle is None:
                middle = self._keys[name] = f",{self._cell(name)},"
            values = read_column(code, column[cut])
            texts = list(map(self._cell, values)) if code == "s" else _csv_texts(code, values)  # type: ignore[arg-type]
            cells.append([middle + text for text in texts])
        end = f",{part.stream.hex()},{'' if columns.rank is None else columns.rank}\n"
        lines = []
        for step, time, *values in zip(columns.step[cut], columns.time[cut], *cells, strict=True):
            for value in values:
                lines.append(f"{step}{value},{time}{end}")
        self._out.write("".join(lines).encode("utf-8"))
        return len(lines)

    def close(self) -> None:
        pass


def _csv_texts(code: str, values: Any) -> list[str]:
    if code == "b":
        return ["true" if value else "false" for value in values]
    return list(map(repr, values))


def _guarded(text: str) -> str:
    return _quoted(f"'{text}" if text.startswith(_FORMULA) else text)


def _quoted(text: str) -> str:
    """`csv.writer` leaves a carriage return bare where lines end with LF, and its own reader chokes on that."""
    if not any(char in text for char in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


class ParquetWriter:
    """Row groups of BATCH_POINTS points; needs pyarrow."""

    def __init__(self, out: IO[bytes]) -> None:
        self._arrow, self._parquet = _pyarrow()
        arrow = self._arrow
        name = arrow.dictionary(arrow.int32(), arrow.string())
        self._schema = arrow.schema(
            [
                arrow.field("step", arrow.int64(), nullable=False),
                arrow.field("key", name, nullable=False),
                arrow.field("value", arrow.float64()),
                arrow.field("time", arrow.timestamp("ns", tz="UTC"), nullable=False),
                arrow.field("stream", name, nullable=False),
                arrow.field("rank", arrow.int64()),
                arrow.field("text", arrow.string()),
            ]
        )
        self._writer = self._parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._columns: list[list[Any]] = [[] for _ in self._schema]

    def write(self, part: Part) -> int:
        columns = part.columns
        cut = slice(part.start, part.stop)
        stream = part.stream.hex()
        cells = []
        for name, code, column in zip(columns.shape.names, columns.shape.codes, columns.cells, strict=True):
            cells.append([(name, *_parquet_value(code, value)) for value in read_column(code, column[cut])])
        step_column, keys, numbers, times, streams, ranks, texts = self._columns
        count = 0
        for step, time, *values in zip(columns.step[cut], columns.time[cut], *cells, strict=True):
            for key, number, text in values:
                step_column.append(step)
                keys.append(key)
                numbers.append(number)
                times.append(time)
                streams.append(stream)
                ranks.append(columns.rank)
                texts.append(text)
            count += len(values)
            if len(keys) >= BATCH_POINTS:
                self._flush(BATCH_POINTS)
        return count

    def _flush(self, most: int) -> None:
        arrow = self._arrow
        arrays = []
        for field, column in zip(self._schema, self._columns, strict=True):
            kind = field.type
            if arrow.types.is_dictionary(kind):
                arrays.append(arrow.array(column[:most], arrow.string()).dictionary_encode())
            elif arrow.types.is_timestamp(kind):
                arrays.append(arrow.array(column[:most], arrow.int64()).cast(kind))
            else:
                arrays.append(arrow.array(column[:most], kind))
            del column[:most]
        self._writer.write_table(
            self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group_size=most
        )

    def close(self) -> None:
        while self._columns[0]:
            self._flush(BATCH_POINTS)
        self._writer.close()


def _parquet_value(code: str, value: Value) -> tuple[float | None, str | None]:
    if isinstance(value, str):
        return None, value
    if code in "qi" and not -_EXACT <= value <= _EXACT:
        try:
            return float(value), str(value)
        except OverflowError:
            return math.copysign(math.inf, 1 if value > 0 else -1), str(value)
    return float(value), None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # an extra: 170 MB that most users do not need
        import pyarrow.parquet
    except ImportError:
        raise BadArgument("parquet needs pyarrow: pip install 'logclient[parquet]'") from None
    return pyarrow, pyarrow.parquet


# ---- reading back ---------------------------------------------------------------------------------------


def _json_rows(source: IO[bytes]) -> Iterator[Row]:
    for number, line in enumerate(source, 1):
        try:
            found = loads(line)
        except ValueError as error:
            raise BadPoints(number, f"no JSON: {error}") from None
        if not isinstance(found, dict) or set(found) != set(FIELDS):
            raise BadPoints(number, f"expected an object with exactly the fields {', '.join(FIELDS)}")
        value = found["value"]
        yield Row(
            number,
            _int64(number, "step", found["step"]),
            _text(number, "key", found["key"]),
            lambda code, value=value: _from_json(code, value),  # type: ignore[misc]
            _int64(number, "time", found["time"]),
            _text(number, "stream", found["stream"]),
            _rank(number, found["rank"]),
        )


def _from_json(code: str, value: Any) -> Value:
    if code in FLOATS:
        if type(value) is str and value in ODD_FLOATS:
            return ODD_FLOATS[value]
        if type(value) in (int, float):
            return float(value)
    elif code == "b":
        if type(value) is bool:
            return value
    elif code == "s":
        if type(value) is str:
            return value
    elif type(value) is int:
        return value
    raise ValueError(f"value {value!r:.60} is no {KINDS[code]}")


def _csv_rows(source: IO[bytes]) -> Iterator[Row]:
    text = io.TextIOWrapper(source, encoding="utf-8", newline="")
    reader = csv.reader(text, strict=True)
    try:
        if tuple(next(reader, ())) != FIELDS:
            raise BadPoints(1, f"expected the header {','.join(FIELDS)}")
        for found in reader:
            number = reader.line_num
            if len(found) != len(FIELDS):
                raise BadPoints(number, f"{len(found)} fields, expected {len(FIELDS)}")
            step, key, value, time, stream, rank = found
            yield Row(
                number,
                _int64(number, "step", _whole(step)),
                key,
                lambda code, value=value: from_text(code, value),  # type: ignore[misc]
                _int64(number, "time", _whole(time)),
                stream,
                _rank(number, None if rank == "" else _whole(rank)),
            )
    except csv.Error as error:
        raise BadPoints(reader.line_num, str(error)) from None
    except UnicodeDecodeError as error:
        raise BadPoints(reader.line_num + 1, f"no UTF-8: {error.reason}") from None
    finally:
        text.detach()


def from_text(code: str, value: str) -> Value:
    """The value that `CsvWriter` wrote; `ValueError` where it is none of that code."""
    if code == "s":
        return value
    try:
        if code in FLOATS:
            return float(value)
        if code == "b":
            return {"true": True, "false": False}[value]
        return int(value)
    except (ValueError, KeyError):
        raise ValueError(f"value {value!r:.60} is no {KINDS[code]}") from None


def _parquet_rows(source: IO[bytes]) -> Iterator[Row]:
    arrow, parquet = _pyarrow()
    number = 0
    try:
        file = parquet.ParquetFile(source)
        if not {*FIELDS, "text"} <= set(file.schema_arrow.names):
            raise BadPoints(1, f"expected the columns {', '.join(FIELDS)}, text")
        for batch in file.iter_batches(BATCH_POINTS, columns=[*FIELDS, "text"]):
            times = batch.column("time").cast(arrow.int64()).to_pylist()
            plain = (
                batch.column(name).to_pylist() for name in ("step", "key", "value", "stream", "rank", "text")
            )
            for step, key, value, stream, rank, text, time in zip(*plain, times, strict=True):
                number += 1
                yield Row(
                    number,
                    _int64(number, "step", step),
                    _text(number, "key", key),
                    lambda code, value=value, text=text: _from_parquet(code, value, text),  # type: ignore[misc]
                    _int64(number, "time", time),
                    _text(number, "stream", stream),
                    _rank(number, rank),
                )
    except arrow.ArrowException as error:
        raise BadPoints(number + 1, f"no parquet file of ours: {error}") from None


def _from_parquet(code: str, value: float | None, text: str | None) -> Value:
    if code == "s":
        if text is not None:
            return text
    elif code in "qi" and text is not None:
        return int(text)
    elif value is not None:
        if code in FLOATS:
            return float(value)
        if float(value).is_integer():
            return bool(value) if code == "b" else int(value)
    raise ValueError(f"value {value!r:.60}, text {text!r:.60} is no {KINDS[code]}")


KINDS = {"d": "float", "r": "float", "q": "int", "b": "bool", "i": "int", "s": "text"}


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def _int64(number: int, name: str, value: Any) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise BadPoints(number, f"{name} {value!r:.60} is no integer of 64 bits")
    return value


def _text(number: int, name: str, value: Any) -> str:
    if type(value) is not str:
        raise BadPoints(number, f"{name} {value!r:.60} is no text")
    return value


def _rank(number: int, value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < (1 << 32) - 1:
        raise BadPoints(number, f"rank {value!r:.60} is none")
    return value

from logclient_proto.v1 import ingest_pb2 as _ingest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Contents(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StoredStream]
    def __init__(self, streams: _Optional[_Iterable[_Union[StoredStream, _Mapping]]] = ...) -> None: ...

class StoredStream(_message.Message):
    __slots__ = ("stream", "process", "lane", "stored", "holes", "first_step", "first_time_ns", "last_step", "last_time_ns")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    stream: bytes
    process: bytes
    lane: int
    stored: _containers.RepeatedCompositeFieldContainer[_ingest_pb2.Range]
    holes: _containers.RepeatedCompositeFieldContainer[_ingest_pb2.Hole]
    first_step: int
    first_time_ns: int
    last_step: int
    last_time_ns: int
    def __init__(self, stream: _Optional[bytes] = ..., process: _Optional[bytes] = ..., lane: _Optional[int] = ..., stored: _Optional[_Iterable[_Union[_ingest_pb2.Range, _Mapping]]] = ..., holes: _Optional[_Iterable[_Union[_ingest_pb2.Hole, _Mapping]]] = ..., first_step: _Optional[int] = ..., first_time_ns: _Optional[int] = ..., last_step: _Optional[int] = ..., last_time_ns: _Optional[int] = ...) -> None: ...

class RecordPage(_message.Message):
    __slots__ = ("batches", "next")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_ingest_pb2.RecordBatch]
    next: int
    def __init__(self, batches: _Optional[_Iterable[_Union[_ingest_pb2.RecordBatch, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

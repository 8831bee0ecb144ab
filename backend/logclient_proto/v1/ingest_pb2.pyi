from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_DAMAGED: _ClassVar[Cause]
    CAUSE_FORGOTTEN: _ClassVar[Cause]
    CAUSE_TRIMMED: _ClassVar[Cause]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNKNOWN: _ClassVar[Reason]
    REASON_INVALID: _ClassVar[Reason]
    REASON_DELETED: _ClassVar[Reason]
    REASON_BUSY: _ClassVar[Reason]
    REASON_DISK: _ClassVar[Reason]
    REASON_STOPPING: _ClassVar[Reason]
    REASON_UNAUTHORIZED: _ClassVar[Reason]
    REASON_PROTOCOL: _ClassVar[Reason]
    REASON_OUTDATED: _ClassVar[Reason]

class Packing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PACKING_RAW: _ClassVar[Packing]
    PACKING_ZSTD: _ClassVar[Packing]
CAUSE_DAMAGED: Cause
CAUSE_FORGOTTEN: Cause
CAUSE_TRIMMED: Cause
REASON_UNKNOWN: Reason
REASON_INVALID: Reason
REASON_DELETED: Reason
REASON_BUSY: Reason
REASON_DISK: Reason
REASON_STOPPING: Reason
REASON_UNAUTHORIZED: Reason
REASON_PROTOCOL: Reason
REASON_OUTDATED: Reason
PACKING_RAW: Packing
PACKING_ZSTD: Packing

class BlobRequest(_message.Message):
    __slots__ = ("run", "node", "asked", "piece")
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    run: str
    node: str
    asked: _containers.RepeatedScalarFieldContainer[bytes]
    piece: BlobPiece
    def __init__(self, run: _Optional[str] = ..., node: _Optional[str] = ..., asked: _Optional[_Iterable[bytes]] = ..., piece: _Optional[_Union[BlobPiece, _Mapping]] = ...) -> None: ...

class BlobPiece(_message.Message):
    __slots__ = ("sha256", "size", "offset", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    offset: int
    data: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class BlobReply(_message.Message):
    __slots__ = ("lacking", "have", "is_complete", "refusal")
    LACKING_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    lacking: _containers.RepeatedScalarFieldContainer[bytes]
    have: int
    is_complete: bool
    refusal: Refusal
    def __init__(self, lacking: _Optional[_Iterable[bytes]] = ..., have: _Optional[int] = ..., is_complete: bool = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class ShipRequest(_message.Message):
    __slots__ = ("hello", "parcel", "alive", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PARCEL_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    parcel: Parcel
    alive: Alive
    report: Report
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., parcel: _Optional[_Union[Parcel, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ...) -> None: ...

class ShipReply(_message.Message):
    __slots__ = ("welcome", "ack", "refusal", "request")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ack: Ack
    refusal: Refusal
    request: Request
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "client", "run", "node", "revive", "is_sync")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REVIVE_FIELD_NUMBER: _ClassVar[int]
    IS_SYNC_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client: str
    run: str
    node: str
    revive: bool
    is_sync: bool
    def __init__(self, protocol: _Optional[int] = ..., client: _Optional[str] = ..., run: _Optional[str] = ..., node: _Optional[str] = ..., revive: bool = ..., is_sync: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "collector", "window_bytes", "most_parcel_bytes", "held", "documents_digest", "documents_revision", "takes_edits", "edits_digest", "public_url", "http_address")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOST_PARCEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_REVISION_FIELD_NUMBER: _ClassVar[int]
    TAKES_EDITS_FIELD_NUMBER: _ClassVar[int]
    EDITS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_URL_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    collector: str
    window_bytes: int
    most_parcel_bytes: int
    held: _containers.RepeatedCompositeFieldContainer[Held]
    documents_digest: bytes
    documents_revision: int
    takes_edits: bool
    edits_digest: bytes
    public_url: str
    http_address: str
    def __init__(self, protocol: _Optional[int] = ..., collector: _Optional[str] = ..., window_bytes: _Optional[int] = ..., most_parcel_bytes: _Optional[int] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., documents_digest: _Optional[bytes] = ..., documents_revision: _Optional[int] = ..., takes_edits: bool = ..., edits_digest: _Optional[bytes] = ..., public_url: _Optional[str] = ..., http_address: _Optional[str] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("stream", "stored", "holes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    stream: bytes
    stored: _containers.RepeatedCompositeFieldContainer[Range]
    holes: _containers.RepeatedCompositeFieldContainer[Hole]
    def __init__(self, stream: _Optional[bytes] = ..., stored: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., holes: _Optional[_Iterable[_Union[Hole, _Mapping]]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Hole(_message.Message):
    __slots__ = ("cause", "range")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    cause: Cause
    range: Range
    def __init__(self, cause: _Optional[_Union[Cause, str]] = ..., range: _Optional[_Union[Range, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "kind", "save", "reason", "by", "time_ns", "is_at_once", "step")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNKNOWN: _ClassVar[Request.Kind]
        KIND_STOP: _ClassVar[Request.Kind]
        KIND_SAVE: _ClassVar[Request.Kind]
        KIND_CLEAR: _ClassVar[Request.Kind]
    KIND_UNKNOWN: Request.Kind
    KIND_STOP: Request.Kind
    KIND_SAVE: Request.Kind
    KIND_CLEAR: Request.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    IS_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: Request.Kind
    save: bool
    reason: str
    by: str
    time_ns: int
    is_at_once: bool
    step: int
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[Request.Kind, str]] = ..., save: bool = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., time_ns: _Optional[int] = ..., is_at_once: bool = ..., step: _Optional[int] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Report(_message.Message):
    __slots__ = ("kind", "age_ms", "json")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNKNOWN: _ClassVar[Report.Kind]
        KIND_OK: _ClassVar[Report.Kind]
        KIND_QUIET: _ClassVar[Report.Kind]
        KIND_STALLED: _ClassVar[Report.Kind]
    KIND_UNKNOWN: Report.Kind
    KIND_OK: Report.Kind
    KIND_QUIET: Report.Kind
    KIND_STALLED: Report.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    kind: Report.Kind
    age_ms: int
    json: Packed
    def __init__(self, kind: _Optional[_Union[Report.Kind, str]] = ..., age_ms: _Optional[int] = ..., json: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("upto",)
    UPTO_FIELD_NUMBER: _ClassVar[int]
    upto: int
    def __init__(self, upto: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "text", "parcel", "is_final", "retry_after_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARCEL_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    text: str
    parcel: int
    is_final: bool
    retry_after_ms: int
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., text: _Optional[str] = ..., parcel: _Optional[int] = ..., is_final: bool = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Parcel(_message.Message):
    __slots__ = ("number", "batches", "holes", "documents", "edits")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    number: int
    batches: _containers.RepeatedCompositeFieldContainer[RecordBatch]
    holes: _containers.RepeatedCompositeFieldContainer[StreamHole]
    documents: Documents
    edits: Edits
    def __init__(self, number: _Optional[int] = ..., batches: _Optional[_Iterable[_Union[RecordBatch, _Mapping]]] = ..., holes: _Optional[_Iterable[_Union[StreamHole, _Mapping]]] = ..., documents: _Optional[_Union[Documents, _Mapping]] = ..., edits: _Optional[_Union[Edits, _Mapping]] = ...) -> None: ...

class RecordBatch(_message.Message):
    __slots__ = ("stream", "process", "lane", "rank", "keys", "table", "records", "text_bytes", "bodies")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    stream: bytes
    process: bytes
    lane: int
    rank: int
    keys: int
    table: KeyTable
    records: int
    text_bytes: int
    bodies: bytes
    def __init__(self, stream: _Optional[bytes] = ..., process: _Optional[bytes] = ..., lane: _Optional[int] = ..., rank: _Optional[int] = ..., keys: _Optional[int] = ..., table: _Optional[_Union[KeyTable, _Mapping]] = ..., records: _Optional[int] = ..., text_bytes: _Optional[int] = ..., bodies: _Optional[bytes] = ...) -> None: ...

class KeyTable(_message.Message):
    __slots__ = ("names", "codes")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    codes: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., codes: _Optional[str] = ...) -> None: ...

class Packed(_message.Message):
    __slots__ = ("packing", "size", "data")
    PACKING_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    packing: Packing
    size: int
    data: bytes
    def __init__(self, packing: _Optional[_Union[Packing, str]] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class StreamHole(_message.Message):
    __slots__ = ("stream", "process", "lane", "hole")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    HOLE_FIELD_NUMBER: _ClassVar[int]
    stream: bytes
    process: bytes
    lane: int
    hole: Hole
    def __init__(self, stream: _Optional[bytes] = ..., process: _Optional[bytes] = ..., lane: _Optional[int] = ..., hole: _Optional[_Union[Hole, _Mapping]] = ...) -> None: ...

class Documents(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: Packed
    def __init__(self, json: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...

class Edits(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: Packed
    def __init__(self, json: _Optional[_Union[Packed, _Mapping]] = ...) -> None: ...

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("collector", "version", "protocol", "most_parcel_bytes", "http_address", "role", "public_url")
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MOST_PARCEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_URL_FIELD_NUMBER: _ClassVar[int]
    collector: str
    version: str
    protocol: int
    most_parcel_bytes: int
    http_address: str
    role: str
    public_url: str
    def __init__(self, collector: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., most_parcel_bytes: _Optional[int] = ..., http_address: _Optional[str] = ..., role: _Optional[str] = ..., public_url: _Optional[str] = ...) -> None: ...

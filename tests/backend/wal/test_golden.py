"""Files of each version of the format are read for ever; today's encoder still writes version 1 as it was."""

from __future__ import annotations

import json

import pytest

from logclient_backend.wal.documents import DocumentFile, pack_slot
from logclient_backend.wal.scan import Item, Scan
from tests.golden import make_wal as golden


def items_of(name: str, data: bytes) -> list[Item]:
    return list(Scan(data, name=name).items())


@pytest.mark.parametrize("name", [golden.OPEN, golden.SEALED])
def test_golden_segment_decodes_to_what_was_written_down(name):
    """Every number, word and text of the stored file is the one in the listing beside it."""
    found = golden.told(items_of(name, (golden.FOLDER / name).read_bytes()))
    listing = [json.loads(line) for line in (golden.FOLDER / f"{name}.jsonl").read_text().splitlines()]
    if ["..."] in listing:
        at = listing.index(["..."])
        assert found[:at] + found[at - len(listing) + 1 :] == listing[:at] + listing[at + 1 :]
    else:
        assert found == listing


def test_todays_encoder_writes_the_golden_open_segment():
    """The open segment has no compressed part: its bytes are pinned."""
    assert golden.open_segment() == (golden.FOLDER / golden.OPEN).read_bytes()
    assert bytes.fromhex("28b52ffd") not in golden.open_segment()  # how a zstd frame begins


def test_todays_sealing_holds_what_the_golden_sealed_segment_holds():
    """Compressed parts may change with the library: what they decode to, and the footer, may not."""
    old, new = ((golden.FOLDER / golden.SEALED).read_bytes(), golden.sealed_segment())
    assert golden.told(items_of(golden.SEALED, new)) == golden.told(items_of(golden.SEALED, old))
    footers = [Scan(data, name=golden.SEALED).footer for data in (old, new)]
    assert footers[0] == footers[1]
    assert old[:44] == new[:44]


def test_golden_document_is_read_and_written_as_it_was():
    """A stored document is loaded, and today's bytes are the same."""
    data = b'{"lr": 0.001}'
    assert DocumentFile(str(golden.FOLDER)).load() == data
    assert (golden.FOLDER / "documents.0").read_bytes() == pack_slot(7, data)

"""The audit ``stream`` finds an index that would hide messages, and passes over one that no reader believes."""

import pytest
from tests.audit.test_streams import audited, readers_of

from brokerd.store import format as layout


def change_index(stream_copy, which, change):
    path = sorted(readers_of(stream_copy).parent.glob("index.*"))[which]
    octets = bytearray(path.read_bytes())
    change(octets)
    crc = layout.crc32c(bytes(octets[64:]), layout.crc32c(bytes(octets[:52])))
    octets[52:56] = crc.to_bytes(4, "little")
    path.write_bytes(octets)
    return path.name


def test_a_stream_without_named_readers_is_known_by_its_indexes(stream_copy):
    readers_of(stream_copy).unlink()
    row, findings = audited(stream_copy)
    assert (row["verdict"], findings) == ("held", [])


@pytest.mark.parametrize(("at", "octets", "text"), [
    (4160 + 64 * 3 + 16, (50_000 * 8).to_bytes(4, "little"), "a row leads to another place"),
    (4160 + 64 * 3, (3).to_bytes(8, "little"), "a row leads to another place"),
    (4160 + 64 * 3 + 8, bytes(8), "a row leads to another place"),
    (64, bytes(4096), "it hides 18 messages from readers with a filter"),
    (4160 + 64 * 3 + 32, bytes(32), "it hides 2 messages from readers with a filter"),
    (4160 + 64 * 4 + 20, bytes(4), None),
])
def test_an_index_that_hides_messages_is_found(stream_copy, at, octets, text):
    def change(index):
        index[at:at + len(octets)] = octets
    name = change_index(stream_copy, 1, change)
    row, findings = audited(stream_copy)
    assert all(text is None or f"{name}: {text}" in finding for finding in findings), findings
    assert (row["verdict"] == "held") == (text is None)


def test_a_mark_of_messages_without_a_value_must_be_there(stream_copy):
    def unmark(index):
        for at in range(4160, len(index), 64):
            index[at + 20] = 0
    name = change_index(stream_copy, 1, unmark)
    _, findings = audited(stream_copy)
    assert f"{name}: it hides 2 messages from readers with a filter" in findings[0]


@pytest.mark.parametrize("change", [
    lambda path: path.write_bytes(path.read_bytes()[:5000]), lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes()[:70] + bytes([255]) + path.read_bytes()[71:]),
])
def test_an_index_that_no_reader_believes_is_passed_over(stream_copy, change):
    change(sorted(readers_of(stream_copy).parent.glob("index.*"))[0])
    row, findings = audited(stream_copy)
    assert (row["verdict"], findings) == ("held", [])

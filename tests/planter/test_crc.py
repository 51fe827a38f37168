"""CRC32C of this package against values that are published."""

import struct

from tests.planter.crc import crc32c, fold, update


def test_the_check_value_of_the_catalogue_is_right():
    assert crc32c(b"123456789") == 0xE3069283


def test_the_examples_of_rfc_3720_are_right():
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_the_bare_update_may_be_done_in_pieces():
    assert update(update(7, b"one"), b"two") == update(7, b"onetwo")


def test_each_flipped_bit_changes_the_check_of_an_entry():
    entry = struct.pack("<IBBH", 4711, 0x23, 0, 5)
    right = fold(9, entry)
    for bit in range(64):
        if bit // 8 != 5:
            other = bytearray(entry)
            other[bit // 8] ^= 1 << bit % 8
            assert fold(9, other) != right

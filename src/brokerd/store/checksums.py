"""CRC32C (Castagnoli), by which all files on disk are checked: compiled where the plane is, else in plain Python.

Knows nothing of layouts: ``format`` says which octets a check covers.
"""

from functools import cache
from typing import Any


@cache
def crc_tables(count: int = 8) -> list[list[int]]:
    """Tables[k][octet]: the raw CRC32C of that octet and k octets of zeros behind it."""
    first = []
    for octet in range(256):
        state = octet
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        first.append(state)
    tables = [first]
    while len(tables) < count:
        tables.append([first[state & 0xFF] ^ state >> 8 for state in tables[-1]])
    return tables


def crc32c_table(data: bytes | memoryview, value: int = 0) -> int:
    """CRC32C in plain Python, about 10 MB/s: the definition the compiled one is held against."""
    state, table = value ^ 0xFFFFFFFF, crc_tables()[0]
    for octet in data:
        state = table[(state ^ octet) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


@cache
def _fastest_crc32c() -> Any:
    try:
        from brokerd.plane import crc32c as compiled  # Absent where readers run without the compiled plane.
    except ImportError:
        return crc32c_table
    return compiled


def crc32c(data: bytes | memoryview, value: int = 0) -> int:
    """CRC32C (Castagnoli) of ``data``, continuing ``value``; compiled where the plane is."""
    return _fastest_crc32c()(data, value)

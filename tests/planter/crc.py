"""CRC32C (Castagnoli) in plain Python: reflected polynomial 0x82F63B78."""

POLYNOMIAL = 0x82F63B78


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _table()


def update(state, octets):
    """The bare update: nothing inverted, neither before nor after."""
    table = TABLE
    for octet in octets:
        state = state >> 8 ^ table[(state ^ octet) & 255]
    return state


def crc32c(octets):
    """The usual CRC32C: inverted before and after."""
    return update(0xFFFFFFFF, octets) ^ 0xFFFFFFFF


def fold(number, octets):
    """The check of an acks entry, whose check octet is 0: the four octets of the state by exclusive or."""
    state = update(number & 0xFFFFFFFF, octets)
    return (state ^ state >> 8 ^ state >> 16 ^ state >> 24) & 255

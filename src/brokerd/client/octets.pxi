"""A part of `_relay.pyx`: numbers as AMQP writes them, and the methods that a relay writes.  Knows no relay."""

cdef inline uint32_t be32(const uint8_t *p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return __builtin_bswap32(value)


cdef inline uint64_t be64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return __builtin_bswap64(value)


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    value = __builtin_bswap32(value)
    memcpy(p, &value, 4)


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    value = __builtin_bswap64(value)
    memcpy(p, &value, 8)


class StreamError(Exception):
    """What came is not AMQP, or not what was agreed."""


cdef bytes _settlement(uint32_t index, uint64_t tag, uint8_t bit):
    """basic.ack with multiple, or basic.reject with requeue, as a frame of channel 1."""
    cdef uint8_t frame[21]
    frame[0] = METHOD
    frame[1], frame[2] = 0, 1
    put32(frame + 3, 13)
    put32(frame + 7, index)
    put64(frame + 11, tag)
    frame[19] = bit
    frame[20] = FRAME_END
    return frame[:21]


cdef bytes _publish(bytes exchange, bytes key, bint mandatory):
    """The payload of basic.publish."""
    assert len(exchange) < SHORTSTR and len(key) < SHORTSTR
    return (b"\x00\x3c\x00\x28\x00\x00" + bytes((len(exchange),)) + exchange + bytes((len(key),)) + key
            + (b"\x01" if mandatory else b"\x00"))

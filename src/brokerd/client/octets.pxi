# A part of `_relay.pyx`: faults of a stream, and the methods that a relay writes.  Knows no relay.

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

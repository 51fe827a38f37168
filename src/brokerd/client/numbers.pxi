# A part of `_relay.pyx`, and of the load generator's `cli/_perf.pyx`: numbers as AMQP writes them, and the numbers of
# frames and methods that both read.  Knows neither.

cdef extern from * nogil:
    uint32_t __builtin_bswap32(uint32_t value)
    uint64_t __builtin_bswap64(uint64_t value)

cdef enum:
    METHOD = 1
    HEADER = 2
    BODY = 3
    FRAME_END = 0xCE
    OVERHEAD = 8                        # type, channel, size, and the end octet
    BASIC_RETURN = 60 << 16 | 50
    BASIC_DELIVER = 60 << 16 | 60
    BASIC_ACK = 60 << 16 | 80
    BASIC_NACK = 60 << 16 | 120


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

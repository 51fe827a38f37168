"""Cut AMQP frames out of a stream of octets, and write them into one.

    0      1         3        7              7+size
    +------+---------+--------+--------------+------+
    | type | channel |  size  |   payload    | 0xCE |
    +------+---------+--------+--------------+------+

    content header payload   | class u16 | weight u16 | body size u64 | property flags, properties |

Knows nothing of sockets, methods or open channels: octets in, frames out.  Messages do not pass through here, because
the plane cuts frames by itself.  The session writes its methods with this module; clients, in tests and tools, read
with it.
"""

from struct import Struct

from brokerd.errors import FrameError

FRAME_METHOD = 1
FRAME_HEADER = 2
FRAME_BODY = 3
FRAME_HEARTBEAT = 8
FRAME_END = 0xCE
FRAME_MIN_SIZE = 4096  # octets of a whole frame that every peer must accept
FRAME_OVERHEAD = 8  # octets of a frame around its payload

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD = Struct(">BHI")
_pack_head = _HEAD.pack
_KINDS = frozenset((FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT))


class Frame:
    """One whole frame: ``kind`` is one of the FRAME_ constants."""

    __slots__ = ("channel", "kind", "payload")

    def __init__(self, kind: int, channel: int, payload: bytes) -> None:
        self.kind = kind
        self.channel = channel
        self.payload = payload

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frame):
            return NotImplemented
        return (self.kind, self.channel, self.payload) == (other.kind, other.channel, other.payload)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.channel}, {self.payload!r})"

    def encode(self) -> bytes:
        """The octets of the frame."""
        return _frame(self.kind, self.channel, self.payload)


def method_frame(channel: int, payload: bytes) -> bytes:
    """A whole method frame; ``payload`` starts at the class id."""
    return _pack_head(1, channel, len(payload)) + payload + b"\xce"


def header_frame(channel: int, payload: bytes) -> bytes:
    """A whole content header frame; ``payload`` as ``properties.encode_header`` makes it."""
    return _frame(FRAME_HEADER, channel, payload)


def body_frames(channel: int, body: bytes, frame_max: int) -> bytes:
    """``body`` as body frames of at most ``frame_max`` octets each (0: no limit); none for an empty body."""
    if not body:
        return b""
    room = frame_max - FRAME_OVERHEAD if frame_max else len(body)
    if len(body) <= room:
        return _frame(FRAME_BODY, channel, body)
    if room <= 0:
        raise ValueError(f"frame_max {frame_max} leaves no room for a body")
    return b"".join(_frame(FRAME_BODY, channel, body[at : at + room]) for at in range(0, len(body), room))


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _pack_head(kind, channel, len(payload)) + payload + b"\xce"


class FrameScanner:
    """Cuts frames out of octets that arrive in pieces of any size.

    ``frame_max`` is the size of the largest whole frame that it accepts, in octets (0: no limit).  The caller may set
    it after tune.
    """

    __slots__ = ("_rest", "frame_max")

    def __init__(self, frame_max: int = 0) -> None:
        self.frame_max = frame_max
        self._rest = b""

    @property
    def pending_octets(self) -> int:
        """How many octets of an incomplete frame have arrived."""
        return len(self._rest)

    def feed(self, octets: bytes) -> list[Frame]:
        """The frames that these octets complete.  FrameError (501): not a frame; discard the scanner then."""
        octets = self._rest + octets
        available = len(octets)
        start = 0
        frames = []
        while available - start >= FRAME_OVERHEAD - 1:
            kind, channel, size = _HEAD.unpack_from(octets, start)
            self._check(kind, size)
            end = start + FRAME_OVERHEAD + size
            if end > available:
                break  # The rest of the frame has not arrived.
            if octets[end - 1] != FRAME_END:
                raise FrameError(f"frame ends in {octets[end - 1]:#04x}, not 0xce")
            frames.append(Frame(kind, channel, octets[start + 7 : end - 1]))
            start = end
        self._rest = octets[start:]
        return frames

    def _check(self, kind: int, size: int) -> None:
        if kind not in _KINDS:
            raise FrameError(f"unknown frame type {kind}")
        if self.frame_max and size + FRAME_OVERHEAD > self.frame_max:
            raise FrameError(f"frame of {size + FRAME_OVERHEAD} octets, but at most {self.frame_max} are agreed")

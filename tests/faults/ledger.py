"""What clients know of each message, and what therefore may and must come out of the broker.

A message is (stream, n): the number of a publishing channel, unique over all restarts, and the number of the
publish on it.  A queue's ``Account`` has one ``Copy`` of each message sent to it.
"""

import struct
from random import Random

HEAD = struct.Struct(">IQI")    # stream, n, octets of the whole body
PATTERN = bytes(range(251)) * 16
OPEN, MAYBE, GONE = range(3)    # settled: no; asked for, not answered; known to be


def body_of(stream, n, octets):
    """The body of that message: every octet follows from stream, n and length."""
    octets = max(octets, HEAD.size)
    filler = PATTERN[(stream * 31 + n) % 251:][:251 * 8]
    need = octets - HEAD.size
    return HEAD.pack(stream, n, octets) + (filler * (need // len(filler) + 1))[:need]


def read_body(body):
    """(stream, n) of a body, each octet of which was checked."""
    assert len(body) >= HEAD.size, body
    stream, n, octets = HEAD.unpack_from(body)
    assert len(body) == octets, (stream, n, octets, len(body))
    assert body == body_of(stream, n, octets), f"message {n} of stream {stream} came with other octets"
    return stream, n


class Copy:
    """One message in one queue."""

    __slots__ = ("confirmed", "persistent", "received", "settled")

    def __init__(self, persistent):
        self.persistent = persistent
        self.confirmed = False
        self.received = False       # by any client, ever
        self.settled = OPEN


class Account:
    """One queue.  ``at_most_once``: consumed without acks, so that a kill may lose what was on its way."""

    def __init__(self, name, *, at_most_once=False):
        self.name = name
        self.at_most_once = at_most_once
        self.consumed = False       # anything may have been handed out since the last look
        self.copies = {}
        self.gone = {}              # message: what became of it
        self.looks = 0

    def receive(self, message, redelivered):
        """A client got ``message``.  Fails for what must not have come."""
        copy = self.copies.get(message)
        assert copy is not None, (f"{self.name}: {message} came (redelivered={redelivered}), which was "
                                  f"{self.gone.get(message, 'never published')}")
        assert copy.settled != GONE, f"{self.name}: {message} came although it was settled (redelivered={redelivered})"
        if copy.received:
            assert redelivered, f"{self.name}: {message} came a second time without redelivered"
        copy.received = copy.confirmed = True
        copy.settled = OPEN

    def settling(self, messages):
        """An ack was sent for these."""
        for message in messages:
            self.copies[message].settled = max(self.copies[message].settled, MAYBE)

    def settled(self, messages):
        """The broker has answered something that was sent after the ack of these."""
        for message in messages:
            self.copies[message].settled = GONE

    def looked(self, came, *, all_redelivered=False):
        """All that the queue holds came, in this order: [(message, redelivered)].  Fails unless that is right.

        ``all_redelivered``: power was lost, so that each must be marked.  Unsettled copies that did not come are
        forgotten where they might be missing.
        """
        last = {}
        self.looks += 1
        expected = {m for m, copy in self.copies.items() if copy.confirmed and copy.settled == OPEN}
        for (stream, n), redelivered in came:
            assert last.get(stream, 0) < n, f"{self.name}: of stream {stream} came {n} after {last[stream]}"
            last[stream] = n
            if not self.consumed and not self.copies[stream, n].received and not all_redelivered:
                assert not redelivered, f"{self.name}: {(stream, n)} is redelivered, but nobody consumed"
            assert redelivered or not all_redelivered, f"{self.name}: {(stream, n)} is not marked redelivered"
            self.receive((stream, n), redelivered)
        missing = expected - {message for message, _ in came}
        assert not missing or self.at_most_once, (
            f"{self.name}: {len(missing)} confirmed are missing, first {sorted(missing)[:5]}; {len(came)} came")
        present = {message for message, _ in came}
        for message, copy in self.copies.items():
            if message not in present:
                copy.settled = GONE

    def forget_settled(self):
        """Nothing can be said any more of what is settled but that it must not come."""
        for message, copy in list(self.copies.items()):
            if copy.settled == GONE:
                self.gone[message] = "received and settled" if copy.received else f"not there at look {self.looks}"
                del self.copies[message]


class Sizes:
    """Octets of bodies: mostly small, some over a frame, few over a segment."""

    def __init__(self, random: Random):
        self.random = random

    def next(self):
        dice = self.random.random()
        if dice < 0.9:
            return self.random.randrange(200)
        if dice < 0.99:
            return self.random.randrange(8000)
        if dice < 0.9995:
            return self.random.randrange(300_000)
        return 1_500_000

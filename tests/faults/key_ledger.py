"""What clients know of keys (deduplication), and what therefore must be a duplicate and what must be stored.

A ``Place`` is where messages are published, with the queues that get them.  A body says its key and its attempt: of all
attempts at one key, one at most may be stored in a queue while the window lasts.

What clients know has an earliest and a latest moment: a message was stored between its publish and its confirm.  So two
answers are certain, and nothing is asked in between: a key surely counts if even the earliest storing is within the
window, and surely counts no more if the latest is behind it.
"""

import bisect
import struct

HEAD = struct.Struct("<QQ")     # key, attempt
MARGIN_S = 0.05                 # A chunk of octets has one time, and records of one queue get times that rise.


class Key:
    """One key in one place, in its present life: it begins a new one when it is stored again."""

    __slots__ = ("attempts", "began", "began_s", "copies", "number", "sure", "sure_s", "ttl_s")

    def __init__(self, number):
        self.number = number
        self.copies = {}                # queue: the attempt that is there
        self.attempts = 0
        self.began = self.began_s = 0   # it was not stored before
        self.sure = self.sure_s = None  # it was stored by then; None: no one knows that it was
        self.ttl_s = None


class Place:
    """``exchange``: "" is the default one.  ``size``, ``ttl_s``: of the window; None: no key falls out of it.
    ``purged``: messages may go that no client saw.  ``groups``: of messages, in which keys count."""

    def __init__(self, name, *, exchange="", queues=(), size=None, ttl_s=None, levels=0, purged=False, groups=0):
        self.groups = groups
        self.name, self.exchange, self.queues = name, exchange, queues or (name,)
        self.size, self.ttl_s, self.levels, self.purged = size, ttl_s, levels, purged
        self.keys = {}

    @property
    def for_ever(self):
        """Keys may be published again at any time: they do not fall out of the window."""
        return self.size is None and self.ttl_s is None

    def must_know(self, now_s):
        """Keys that surely count, until ``now_s`` at least."""
        if self.size is None:
            return [key for key in self.keys.values() if key.sure is not None
                    and (key.ttl_s is None or key.began_s + key.ttl_s - MARGIN_S > now_s)]
        never = float("inf")
        ends = sorted(never if key.sure is None else key.sure for key in self.keys.values())
        # Behind a key may be all that were not surely stored when it was published: itself is one of them.
        return [key for key in self.keys.values() if key.sure is not None
                and len(ends) - bisect.bisect_right(ends, key.began) <= self.size]

    def must_not_know(self, now_s):
        """Keys that surely do not count, from ``now_s`` on; every queue was looked at since the broker was killed."""
        unknown = [] if self.purged else [key for key in self.keys.values() if key.sure is None]
        known = [key for key in self.keys.values() if key.sure is not None]
        if self.ttl_s is not None:
            return unknown + [key for key in known if key.sure_s + key.ttl_s + MARGIN_S < now_s]
        if self.size is None:
            return unknown
        begins = sorted(key.began for key in known)
        return unknown + [key for key in known if len(begins) - bisect.bisect_right(begins, key.sure) >= self.size]


class Ledger:
    """All places.  ``clock()``: seconds since the epoch."""

    def __init__(self, places, clock):
        self.places = places
        self.clock = clock
        self.of_queue = {queue: place for place in places for queue in place.queues}
        self.events = self.numbers = 0
        self.attempts = {}              # attempt: (place, key)
        self.batches = []               # attempts of each transaction that was not answered yet
        self.duplicates = 0             # keys that were found to be known
        self.forgotten = 0              # and those that were rightly not, though they were known once

    def _event(self):
        self.events += 1
        return self.events

    def new_key(self, place):
        """A key that was never published."""
        self.numbers += 1
        key = place.keys[self.numbers] = Key(self.numbers)
        key.ttl_s = place.ttl_s
        return key

    def attempt(self, place, key):
        """Note that ``key`` is published; returns the number of the attempt."""
        number = self._event()
        if not key.attempts:
            key.began, key.began_s = number, self.clock()
        key.attempts += 1
        self.attempts[number] = place, key
        return number

    def _be_sure(self, key):
        if key.sure is None:
            key.sure, key.sure_s = self._event(), self.clock()

    def confirmed(self, number):
        """The publisher was told that this attempt is stored, or that one before it was."""
        self._be_sure(self.attempts[number][1])

    def receive(self, queue, body):
        """A client got a message from ``queue``.  Fails if a copy with another attempt at its key came before."""
        number, attempt = HEAD.unpack_from(body)
        assert body == body_of(number, attempt, len(body)), (queue, number, attempt)
        place, key = self.attempts[attempt]
        assert (key.number, self.of_queue[queue]) == (number, place), (queue, number, attempt)
        self._be_sure(key)
        before = key.copies.setdefault(queue, attempt)
        if before != attempt:
            assert not place.for_ever, f"{queue}: key {number} was stored by attempt {before}, and again by {attempt}"
            if attempt > before:
                key.copies[queue] = attempt
        return attempt

    def looked(self, place):
        """Every queue of the place was looked at, after a kill.  Fails if a confirmed message is nowhere."""
        if not place.purged:
            lost = [key.number for key in place.keys.values() if key.sure is not None and not key.copies]
            assert not lost, f"{place.name}: {len(lost)} confirmed messages are lost, first {lost[:5]}"

    def check_batches(self):
        """A transaction that was not answered is stored whole, or not at all, as far as its keys are its own."""
        for batch in self.batches:
            mine = [self.attempts[number] for number in batch]
            stored = {bool(key.copies) for place, key in mine if key.attempts == 1 and not place.purged}
            assert len(stored) < 2, f"a transaction is not whole: {[(p.name, k.number, k.copies) for p, k in mine]}"
        self.batches.clear()

    def stored_again(self, key, attempt, began_s):
        """``key`` was not known, and begins a new life with this attempt."""
        key.attempts = 1
        key.began, key.began_s = attempt, began_s
        key.sure = key.sure_s = None
        self._be_sure(key)


def body_of(number, attempt, octets):
    """Every octet follows from key, attempt and length."""
    return HEAD.pack(number, attempt) + bytes([attempt % 251]) * (max(octets, HEAD.size) - HEAD.size)

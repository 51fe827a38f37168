"""The border of the data plane, for deduplication: keys of messages.  ``__init__.pyi`` is the first page."""

from collections.abc import Callable

from brokerd.plane import Queue

class Window:
    """The last keys that were entered.  A key is a hash, and never 0.  It counts until its time is over.  Times are ms
    since the epoch."""
    def __init__(self, size: int, ttl_ms: int = -1, header: bytes = b"") -> None:
        """size: how many keys it holds at most; it takes memory only for the keys that it has.  ttl_ms: the time of a key without
        a time of its own; -1: no limit.  header: the name of the header with a message's key.  Raises ValueError: size 0."""
    size: int; ttl_ms: int
    hash_key: HashKey | None     # None: the control plane handles every message that has a key
    duplicates: int      # messages that were not stored because their key was known
    entered: int         # keys, since it was made
    octets: int          # of memory
    def __len__(self) -> int: ...
    def knows(self, hash_: int, now_ms: int) -> bool:
        """Whether the key is there and its time is not over."""
    def enter(self, hash_: int, expires_ms: int, now_ms: int, seq: int = 0) -> None:
        """Make the key the newest one; if there are too many, the oldest goes.  seq: of its message.  Raises ValueError for
        0."""
    def forget(self, hash_: int, seq: int) -> None:
        """Forget the key, if it is that of message `seq`."""
    def seq_of(self, hash_: int) -> int:
        """The message that has the key; 0: it is not known, or there is no such key."""
    def set_rule(self, *, by_content: bool, waiting: bool, action: int, group_from: int, group: bytes = b"",
                 group_property: int = 0) -> None:
        """by_content: the body is the key of a message whose headers have none.  waiting: set before the first key; a key
        is forgotten when its message is settled, and `size` counts keys alone.  action: what happens to a duplicate (0: it is
        left out; 1: also, its publisher is told that it is refused; 2: also, on_dead() gets it; 3: it is stored, and
        on_replaced() is called).  group_from, group, group_property: see queues/deduplication.GROUP_PLACES; 0: a key counts in all groups."""
    def load(self, rows: bytes, now_ms: int, *, unless_newer: bool = False) -> None:
        """Enter the rows of key files (store/format.py), in any order, each once.  Takes time in proportion to the rows.
        unless_newer: leave out rows of a key that a newer message has."""
    def change(self, size: int, ttl_ms: int, header: bytes) -> None:
        """Change the size, the time of later keys, and the header that has them.  As many of the newest keys stay as fit."""

class ExchangeWindow(Window):
    """The keys that one exchange knows."""
    def __init__(self, size: int, ttl_ms: int, header: bytes, *, has_log: bool) -> None: ...
    def on_learnt(self, rows: bytes, lasting: int, until_ms: int) -> None:
        """The exchange has learnt these keys, and the records of their messages are in files.  Called if it `has_log`.
        rows: as store/format.py has them.          lasting: the number, from 1, of the last row with a message that the next sync covers;
        0: it covers no message of these.  until_ms: when the last key expires.  Must not raise."""
    def on_full(self, rows: int) -> None:
        """Set `room` to so many rows or more, before the message of the last of them is stored.  Called if it `has_log`.
        Raises OSError: then the publish waits, as for room for its message."""
    room: int                    # how many more rows fit into the log, including rows that on_learnt() has not had yet

class HashKey:
    """The secret with which deduplication keys are hashed."""
    def __init__(self, octets: bytes, *, is_blake2b: bool = False) -> None:
        """is_blake2b: the vhost has a secret of version 1, which hashes with BLAKE2b.  Raises ValueError: not 16 octets."""
    def hash(self, octets: bytes) -> int:
        """The hash of a key, never 0.  Raises ValueError: no octet."""

class Keys:
    """The deduplication keys of one message."""
    def __init__(self, of_queues: dict[Queue, int], of_exchange: int = 0, ttl_ms: int = -1, *,
                 on_body: Callable[[bytes], object] | None = None) -> None:
        """of_queues: the hash that the record carries in each queue with a window.  of_exchange: the hash that records in
        other queues carry; 0: none.  ttl_ms: how long the message says that its keys count; -1: it does not say.  on_body():
        called with the message's body before each before_storing(); it may call change()."""
    on_body: Callable[[bytes], object] | None
    def change(self, of_queues: dict[Queue, int], of_exchange: int, ttl_ms: int) -> None:
        """The message has these keys instead."""

def find_key_hash(window: Window, properties: bytes, routing_key: bytes = b"", body: bytes = b"") -> int | None:
    """The hash of the deduplication key of a message with these properties (flags and list as on the wire); 0: it has none.
    None: the key is not plain, or the window has no hash key yet, so that the control plane handles the message.  Raises
    ValueError for malformed properties."""
def find_own_ttl(properties: bytes) -> int:
    """The time, in ms, for which a message with these properties says that its key counts; -1: it does not say.  Raises
    ValueError for malformed properties."""

def enter_keys_that_wait(queue: Queue, number: int = 0, level: int = 0) -> None:
    """Enter keys of unsettled messages into the queue's window of waiting keys.  number: enter the messages of this segment that
    the cursor has not reached; 0: enter all messages that the cursor has passed.  Takes time in proportion to the messages."""

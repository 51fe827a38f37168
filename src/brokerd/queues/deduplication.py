"""Deduplication: finds duplicates in one queue or exchange, and a message's key.

A queue or exchange with ``x-message-deduplication: true`` has a window of keys.  A message is a duplicate if its key is
in the window: it is confirmed and not stored.  The key is a header's value, of any type.  The argument
``x-deduplication-header`` names the header; without the argument the header is called ``x-deduplication-header`` too.
If the message lacks it, the header ``MessageDeduplicationId`` counts.  A message with neither is never a duplicate.

Three arguments say more.  With ``x-deduplication-content`` the body is the key of a message whose headers have none.
``x-deduplication-scope``: a key counts in the whole queue, in its message's group alone, or only while its message
waits.  ``x-deduplication-action`` says what happens to a duplicate: it is confirmed (``ack``) or refused (``nack``),
dead-lettered, or replaces the older message unless that one is out.

The window holds the last ``x-cache-size`` keys (128).  A key counts for as long as the message's header x-cache-ttl
says, else for ``x-cache-ttl`` milliseconds, else as long as it is among the last.  A duplicate does not begin the key's
time anew.  Names and defaults are LavinMQ's and those of RabbitMQ's plugin; a window that lasts is new.

A queue's window follows from its records.  The data plane writes a key's hash into the record and enters it into the
window in one step.  So a key is known if and only if its message was stored, also after kill -9 and a power cut.  Key
files (store/key_files) have the keys of records that are gone.

A window holds keyed hashes of 64 bits.  With a million keys in it, one new key in 18 million million is wrongly taken
for a duplicate.  Only a reader of the vhost's hash key can make two keys with the same hash.

Knows nothing of messages, of how publishes go, or of the time.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd import plane
from brokerd.errors import StoreError
from brokerd.queues.dead_letter import read_properties
from brokerd.queues.groups import HEADERS as USUAL_HEADER_NAMES
from brokerd.store.format import KEY_ROW, keys_name, priority_folder
from brokerd.store.key_files import FORMER_FILE, FORMER_NUMBER, KeyFiles, rows_of_queue
from brokerd.store.key_files import write as write_keys
from brokerd.wire.values import Timestamp, encode_table

if TYPE_CHECKING:
    from brokerd.wire.properties import Properties

KEYS_MAX = 1 << 24  # in one window

DEFAULT_HEADER = "x-deduplication-header"
OTHER_HEADER = "MessageDeduplicationId"
DEFAULT_SIZE = 128
GROUPS_TTL_MS = 300_000  # of a key, unless told otherwise, in a queue with message groups
WAITING, GROUP = "waiting", "group"
REPLACE, DEAD_LETTER, NACK = "replace", "dead-letter", "nack"
ACTIONS = ("ack", NACK, DEAD_LETTER, REPLACE)  # by the data plane's numbers
# Names of x-message-group-header that are no headers: the data plane's number for where the group is, and the bit of
# the property's flag.
NO_GROUP, USUAL_HEADERS, HEADER, ROUTING_KEY, PROPERTY = range(5)
GROUP_PLACES = {
    "routing-key": (ROUTING_KEY, 0), "correlation-id": (PROPERTY, 10), "type": (PROPERTY, 5), "user-id": (PROPERTY, 4),
    "app-id": (PROPERTY, 3),
}  # fmt: skip

_ANY_KEY = "key"
_FEW_ROWS_OCTETS = 16_384 * KEY_ROW.size  # are entered at once
_ALL_BITS = (1 << 64) - 1


class Rule(NamedTuple):
    """The arguments of one queue or exchange that say what a duplicate is."""

    header: str = DEFAULT_HEADER
    size: int = DEFAULT_SIZE
    ttl_ms: int | None = None  # None: as long as it is among the last
    content: bool = False  # the body is the key of a message whose headers have none
    scope: str = ""  # GROUP, WAITING; "": the whole queue or exchange
    action: str = "ack"
    group: str = ""  # where a message's group is, as x-message-group-header says it; "": in one of the usual headers

    @property
    def waits(self) -> bool:
        """Whether a key counts only until its message is settled."""
        return self.scope == WAITING


class Seen(NamedTuple):
    """The parts of a message, besides its headers, from which its key may follow."""

    properties: "Properties | None" = None
    routing_key: str = ""
    body: bytes | None = None  # None: it is not known yet


NOTHING_MORE = Seen()


def rule_of(arguments: Mapping[str, Any]) -> Rule | None:
    """The rule in arguments that were checked; None: nothing is a duplicate."""
    if arguments.get("x-message-deduplication") is not True or arguments.get("x-cache-size") == 0:
        return None
    scope = arguments.get("x-deduplication-scope", "")
    has_groups = arguments.get("x-message-group", "off") != "off" or "qpid.group_header_key" in arguments
    # While a message waits, its key counts: nothing else limits the keys unless the queue's arguments do.
    return Rule(
        arguments.get("x-deduplication-header", DEFAULT_HEADER),
        min(arguments.get("x-cache-size", KEYS_MAX if scope == WAITING else DEFAULT_SIZE), KEYS_MAX),
        arguments.get("x-cache-ttl", GROUPS_TTL_MS if has_groups and scope != WAITING else None),
        arguments.get("x-deduplication-content") is True,
        scope if scope in (GROUP, WAITING) else "",
        arguments.get("x-deduplication-action", "ack"),
        group_header(arguments) if scope == GROUP else "",
    )


def key_of(rule: Rule, headers: Mapping[str, Any] | None) -> bytes | None:
    """The key of a message, as octets; None: it has none.

    Equal numbers of any widths are the same key.  A number, a text and a truth value are never the same.
    """
    if not headers:
        return None
    value = headers.get(rule.header)
    if value is None:
        value = headers.get(OTHER_HEADER)
        if value is None:
            return None
    return _octets_of(value, b"S", b"I")


def _octets_of(value: Any, text: bytes, number: bytes) -> bytes:
    if isinstance(value, str):
        return text + value.encode("utf-8", "surrogateescape")
    if isinstance(value, int) and not isinstance(value, bool | Timestamp):
        return number + b"%d" % value
    if isinstance(value, float):
        return b"d" + repr(float(value)).encode()
    return b"F" + encode_table({_ANY_KEY: value})


def group_header(arguments: Mapping[str, Any]) -> str:
    """Where the arguments say that a message's group is; "": in one of the usual headers."""
    return str(arguments.get("qpid.group_header_key", arguments.get("x-message-group-header", "")))


def group_place(group: str) -> tuple[int, bytes, int]:
    """Where the data plane finds a message's group.  ``group``: as x-message-group-header; "": the usual headers."""
    place, bit = GROUP_PLACES.get(group, (HEADER if group else USUAL_HEADERS, 0))
    return place, group.encode("utf-8", "surrogateescape"), bit


def group_of(rule: Rule, headers: Mapping[str, Any] | None, seen: Seen) -> bytes | None:
    """The name of a message's group, as octets; None: it has none."""
    value: Any = None
    if rule.group == "routing-key":
        value = seen.routing_key
    elif rule.group in GROUP_PLACES:
        value = getattr(seen.properties, rule.group.replace("-", "_"), None)
    else:
        names = (rule.group,) if rule.group else USUAL_HEADER_NAMES
        value = next((found for name in names if (found := (headers or {}).get(name)) is not None), None)
    return None if value is None else _octets_of(value, b"G", b"H")


def ttl_of(rule: Rule, headers: Mapping[str, Any] | None) -> int | None:
    """How long the message's key is remembered, in ms; None: as long as it is among the last."""
    own = own_ttl_of(headers)
    return own if own >= 0 else rule.ttl_ms


class Deduplication:
    """The rule and the window of one queue or exchange.

    Where the disk is full, a publish with a key waits.  If files of keys cannot be read, publishes go on, duplicates
    may pass, and one line is logged.
    """

    __slots__ = ("_failed", "_files", "_former", "rule", "window")

    def __init__(self, rule: Rule, files: KeyFiles, window: plane.Window | None = None) -> None:
        """``window``: a new one with the bounds of the rule; None: it is made."""
        self.rule = rule
        self.window = plane.Window(*bounds_of(rule)) if window is None else window
        self._tell_plane()
        self._files = files
        self._former = b""  # the hash key of keys that an earlier release knew
        self._failed = False

    @property
    def duplicates(self) -> int:
        """How many messages were not stored since start, because their key was known."""
        return self.window.duplicates

    def is_for_plane(self, properties: bytes) -> bool:
        """Whether the data plane can look for duplicates of a message with these properties (flags and list).

        It finds plain keys alone, and does not know those that an earlier release hashed.
        """
        if self._former:
            return False
        if plane.find_key_hash(self.window, properties) is None and self.window.hash_key is None:
            self._begin_in_plane()
        return plane.find_key_hash(self.window, properties) is not None

    def _begin_in_plane(self) -> None:
        """A first key has come: let the data plane hash later ones by itself."""
        try:
            self.window.hash_key = self._files.plane_key
        except OSError:
            pass  # The control plane looks for duplicates, and has the publish wait until the hash key is on disk.
        except StoreError as error:
            self.report_once(error)

    def hash_of(self, headers: Mapping[str, Any] | None, seen: Seen = NOTHING_MORE) -> int:
        """The hash of the key of a message with these headers; 0: it has no key, or its key is the body that is not
        there yet."""
        rule = self.rule
        key = key_of(rule, headers)
        if key is None and rule.content and seen.body is not None:
            key = b"C" + seen.body
        if key is None:
            return 0
        try:
            hashed = self._files.hash_of(key)
            group = group_of(rule, headers, seen) if rule.scope == GROUP else None
            if group is not None:
                of_group = self._files.hash_of(group)
                hashed = hashed ^ (of_group << 32 & _ALL_BITS | of_group >> 32) or 1
            return hashed
        except (OSError, StoreError) as error:
            self.report_once(error)
            return 0

    def is_duplicate(self, headers: Mapping[str, Any] | None, seen: Seen = NOTHING_MORE) -> bool:
        """Whether a message with these headers was accepted before."""
        hashed, now_ms = self.hash_of(headers, seen), self._files.now_ms
        if not hashed:
            return False
        if self.window.knows(hashed, now_ms):
            return True
        key = key_of(self.rule, headers) if self._former else None
        return key is not None and self.window.knows(self._files.hash_of(key, self._former), now_ms)

    def change(self, rule: Rule) -> None:
        """Put another rule in force; as many of the newest keys stay as fit."""
        assert rule.waits == self.rule.waits  # Their windows have other keys.
        self.rule = rule
        self.window.change(*bounds_of(rule))
        self._tell_plane()

    def _tell_plane(self) -> None:
        rule = self.rule
        place, name, bit = group_place(rule.group) if rule.scope == GROUP else (NO_GROUP, b"", 0)
        self.window.set_rule(
            by_content=rule.content, waiting=rule.waits, action=ACTIONS.index(rule.action), group_from=place,
            group=name, group_property=bit,
        )  # fmt: skip

    def load(self, directory: str, levels: Iterable[int], *, suspect: bool) -> Iterator[list[tuple[int, int]]]:
        """Enter the keys in a queue's folder.  Yields after each segment: at last (level, number) of each that has a
        key file, before that nothing.  A key that has come meanwhile is the newer one.

        ``suspect``: the power was cut since they were written.
        """
        rows: list[tuple[int, bytes]] = []  # with the segment's number
        beside: list[tuple[str, int]] = []
        in_files: list[tuple[int, int]] = []
        try:
            made = f"{directory}/{keys_name(FORMER_NUMBER)}"
            self._files.take_over(f"{directory}/{FORMER_FILE}", made, suspect=suspect)
            for level in levels:
                folder = f"{directory}/{priority_folder(level)}" if level else directory
                for number, path, found, file in rows_of_queue(
                    self._files, folder, self.rule.size, _or_none(self.rule.ttl_ms), self._own_ttl
                ):
                    yield []
                    # Two files may have the same key of the same message: enter it once.
                    rows.append((number, found if file is None else found + file.rows))
                    if file is not None:
                        beside.append((path, file.until_ms))
                        in_files.append((level, number))
                        if number == FORMER_NUMBER:
                            self._former = file.hash_key
        except (OSError, StoreError) as error:
            self.report_once(error)
        # Segments are numbered as they began, but those of two levels may have been written to in turns.
        parts = [found for _, found in sorted(rows)]
        for found in [b"".join(parts)] if sum(map(len, parts)) <= _FEW_ROWS_OCTETS else parts:
            self.window.load(found, self._files.now_ms, unless_newer=True)
            yield []
        for path, until_ms in beside:
            self._files.watch(path, self.window, until_ms)
        yield in_files

    def write(self, path: str, number: int, rows: bytes) -> None:
        """Write a key file of the queue, in a thread.  Raises OSError, StoreError."""
        write_keys(path, number, self._files.hash_key, rows, self._files.disk)

    def watch_file(self, path: str, rows: bytes) -> None:
        """Have a file that is now on disk removed when its keys no longer count."""
        until_ms = max(expires for _, _, expires in KEY_ROW.iter_unpack(rows))
        self._files.watch(path, self.window, until_ms)

    def forget(self, directory: str) -> None:
        """Remove the key files of a queue that has no rule any more."""
        for path in self._files.watched_in(directory):
            self._files.remove(path)

    def report_once(self, error: Exception) -> None:
        """Log the first fault of the key files; later ones are not logged."""
        if not self._failed:
            self._files.report(f"{error}; duplicates may pass")
        self._failed = True

    def _own_ttl(self, properties: bytes) -> int | None:
        return ttl_of(self.rule, read_properties(properties).headers)


def own_ttl_of(headers: Mapping[str, Any] | None) -> int:
    """How long a message says that its key counts, in ms; -1: it does not say."""
    own = headers.get("x-cache-ttl") if headers else None
    return own if isinstance(own, int) and not isinstance(own, bool | Timestamp) and own >= 0 else -1


def bounds_of(rule: Rule) -> tuple[int, int, bytes]:
    """The part of a rule that a window takes."""
    return rule.size, _or_none(rule.ttl_ms), rule.header.encode("utf-8", "surrogateescape")


def _or_none(ttl_ms: int | None) -> int:
    """The same time as the data plane writes it: -1 for None."""
    return -1 if ttl_ms is None else ttl_ms

"""docs/limits.md is held against the source: options and their defaults, fixed numbers, and the texts of refusals."""

import re
from pathlib import Path

import pytest
from tests.test_docs import SOURCE, VALUES, literals, text_of

from brokerd import descriptors, hoarders, patterns
from brokerd.arguments import BY_NAME as QUEUE_ARGUMENTS
from brokerd.auth import failures
from brokerd.auth.users import MAX_CHANNELS, MAX_CONNECTIONS
from brokerd.config import OPTIONS
from brokerd.exchanges import recent_history
from brokerd.exchanges.arguments import EXCHANGE_ARGUMENTS
from brokerd.management import control as asking
from brokerd.node import CALM_NS, CROWD_NS, WORK_NS
from brokerd.queues import deduplication
from brokerd.server import control, listeners, log
from brokerd.session import connection, transactions
from brokerd.store import json_file, shared_commit_log, side_file
from brokerd.upkeep import retention
from brokerd.vhost import dead_letters, direct_reply, events
from brokerd.vhost.definitions import COMPACT_DELETES_MIN
from brokerd.vhost.listing import MAX_QUEUES
from brokerd.wire import methods
from brokerd.wire.values import DEPTH_MAX

PAGE = Path(__file__).resolve().parent.parent / "docs" / "limits.md"
KIB, MIB = 1 << 10, 1 << 20
DEFAULT = re.compile(r"`([\w-]+)`: ([^,]+)")
SETTINGS = {MAX_CONNECTIONS, MAX_CHANNELS, MAX_QUEUES}  # of vhosts and users, with no default


def tables():
    """The cells of every row of a table with four columns."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text_of(PAGE).splitlines()
            if line.startswith("|") and not line.startswith(("|---", "| what grows"))]
    return [row for row in rows if len(row) == 4]


def row_of(start):
    """The one row that begins with these words."""
    (row,) = [row for row in tables() if row[0] == start]
    return row


def plane(name):
    """A number of the data plane's, which Python does not see."""
    found = {match for path in SOURCE.glob("plane/*.px[id]")
             for match in re.findall(rf"^ +{name} = ([^#\n]+?) *(?:#|$)", text_of(path), re.MULTILINE)}
    (expression,) = found
    names = {each: plane(each) for each in re.findall(r"[A-Z_]{3,}", expression)}
    return eval(expression, {}, names)


def test_options_named_there_exist_and_have_the_defaults_that_stand_there():
    seen = set()
    for *_, last in tables():
        for name, shown in DEFAULT.findall(last):
            seen.add(name)
            default = shown.removesuffix(" s").removesuffix(" (none)")
            if name in OPTIONS:
                assert default == str(OPTIONS[name].default).lower(), name
    assert len(seen & OPTIONS.keys()) >= 12


def test_every_option_that_bounds_something_is_there():
    bounding = {name for name, row in OPTIONS.items()
                if row.type is int and not name.endswith("_port") and row.option.section != "tls"}
    assert bounding <= set(re.findall(r"`(\w+)`", text_of(PAGE)))


def test_every_name_that_looks_like_an_argument_or_a_setting_is_one():
    arguments = {argument.name for argument in EXCHANGE_ARGUMENTS} | QUEUE_ARGUMENTS.keys()
    for name in re.findall(r"`(x-[\w-]+)`", text_of(PAGE)):
        assert name in arguments, name
    named = set(re.findall(r"`(max-[\w-]+)`", text_of(PAGE)))
    assert named == SETTINGS
    for name in re.findall(r"`([a-z]+_[a-z_]+)`", text_of(PAGE)):
        assert name in OPTIONS, name


@pytest.mark.parametrize(("row", "shown", "is_so"), [
    ("sockets that wait to be accepted", "1,024", listeners.BACKLOG == 1024),
    ("descriptors of sockets", "256", descriptors.RESERVE == 256),
    ("descriptors of sockets", "once a second", descriptors.TELL_SECONDS == 1),
    ("failed logins of one user from one address", "ten at once", failures.BURST == 10),
    ("failed logins from one address", "ten times", failures.PER_ADDRESS == 10),
    ("addresses and users whose failures are known", "20,000", failures.BUCKETS_MAX == 20_000),
    ("a client that is to close", "10 s for", connection.CLOSE_SECONDS == 10),
    ("a client that is to close", "1 s to end", connection.LINGER_SECONDS == 1),
    ("work for one client in a row", "1 ms", WORK_NS == 1_000_000),
    ("work for one client in a row", "8 ms", CALM_NS == 8_000_000),
    ("work on methods of all clients in a row", "4 ms", CROWD_NS == 4_000_000),
    ("work for one client in a row", "2 MiB", plane("IN_A_TURN_MOST") == 2 * MIB),
    ("unfinished messages of a connection", "1 MiB", plane("CONTENT_HEADERS_MOST") == MIB),
    ("unfinished messages of all connections", "64 KiB", plane("MUCH_UNFINISHED") == 64 * KIB),
    ("memory of an unfinished message of 4 MiB or more", "1 MiB",
     (plane("LARGE_BODY"), plane("LARGE_BEGIN")) == (4 * MIB, MIB)),
    ("octets of a method", "16,384", methods.METHOD_OCTETS_MAX == 16_384),
    ("values in the arguments of a method, with those in inner tables and arrays", "1,024", methods.VALUES_MAX == 1024),
    ("tables and arrays in each other", "64", DEPTH_MAX == 64),
    ("a transaction, in the data plane", "8 MiB", plane("KEPT_OCTETS_MOST") == 8 * MIB),
    ("a transaction, in the data plane", "64 MiB", plane("KEPT_IN_ALL_MOST") == 64 * MIB),
    ("open transactions, in the session", "1 MiB", hoarders.MUCH_OCTETS == MIB),
    ("methods behind a `tx.commit` that is not answered", "256", transactions.DEFERRED_MOST == 256),
    ("output of a connection", "1 MiB", plane("OUT_MOST") == MIB),
    ("direct replies to a connection", "16 MiB", direct_reply.WAITING_OCTETS_MAX == 16 * MIB),
    ("output and unfinished messages, when memory is scarce", "1 MiB", hoarders.MUCH_OCTETS == MIB),
    ("output and unfinished messages, when memory is scarce", "20 s", hoarders.PATIENCE_SECONDS == 20),
    ("deduplication keys of a queue or exchange", "16,777,216", deduplication.KEYS_MAX == 16_777_216),
    ("deduplication keys of a queue or exchange", "128", deduplication.DEFAULT_SIZE == 128),
    ("messages that a recent-history exchange keeps", "64 MiB", recent_history.HISTORY_OCTETS_MAX == 64 * MIB),
    ("messages that a recent-history exchange keeps", "256 MiB",
     recent_history.HISTORIES_OCTETS_MAX == 256 * MIB),
    ("messages that a recent-history exchange keeps", "20", recent_history.HISTORY_LENGTH == 20),
    ("dead letters that wait to be tried again", "64 MiB", dead_letters.WAITING_OCTETS_MAX == 64 * MIB),
    ("copies of a message that dies by itself again and again, each time into several queues", "10,000",
     dead_letters.COPIES_MAX == 10_000),
    ("remembered routes", "16,384", plane("ROUTES_MOST") == 16_384),
    ("remembered routes by headers", "16,384", plane("SETS_MOST") * plane("WAYS") == 16_384),
    ("remembered routes by headers", "1,024", plane("EXTRACT_MOST") == 1024),
    ("regular expressions", "4,096", patterns.LENGTH_MAX == 4096),
    ("regular expressions", "16 conditions", patterns.CONDITIONS_MAX == 16),
    ("regular expressions", "64 classes", patterns.CLASSES_MAX == 64),
    ("regular expressions", "1,500 parts", patterns.REPEATED_MAX == 1500),
    ("policies", "64 MiB", json_file.OCTETS_MAX == 64 * MIB),
    ("buffers of messages about to be written", "64 of 288 KiB",
     (plane("STAGES_MOST"), plane("OUT_ROOM")) == (64, 288 * KIB)),
    ("buffers of messages about to be written", "16", plane("POOL_MOST") == 16),
    ("the log's lines that wait for the log exchange", "1,000", events.LINES_WAITING_MAX == 1000),
    ("connections of brokerctl", "192", control.CONNECTIONS_MAX == 192),
    ("connections of brokerctl", "112", asking.CONNECTIONS + asking.PATIENT_CONNECTIONS == 112),
    ("requests of HTTP that wait", "100", asking.PATIENT_CONNECTIONS == 100),
    ("connections of brokerctl", "16 MiB", control.REQUEST_OCTETS_MAX == 16 * MIB),
    ("open files of queues", "128", descriptors.RESERVE // 2 == 128),
    ("spare segments", "64 of", plane("SPARES_MOST") == 64),
    ("spare segments", "8 without", plane("NAMELESS_MOST") == 8),
    ("settled segments of all order journals", "64 MiB", retention.HEADROOM_OCTETS == 64 * MIB),
    ("`order.jsonl` of a queue", "1 MiB", side_file.OCTETS_MAX == MIB),
    ("the definitions log", "1,024", COMPACT_DELETES_MIN == 1024),
    ("commit logs of transactions", "1 MiB", shared_commit_log.FILE_OCTETS == MIB),
    ("one line of the log", "4,096", log.LINE_CHARACTERS_MAX == 4096),
])  # fmt: skip
def test_a_fixed_number_is_that_of_the_source(row, shown, is_so):
    assert shown in " ".join(row_of(row)[1:])
    assert is_so


def test_the_texts_of_refusals_are_those_of_the_source():
    said = literals()
    checked = 0
    for what, _, answer, _ in tables():
        for text in re.findall(r"`([^`]+)`", answer):
            if " " not in text:
                continue
            checked += 1
            for part in VALUES.split(text):
                assert part.strip(" .,:(){}") in said, (what, part)
    assert checked >= 12

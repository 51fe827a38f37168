import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.plane.test_store import no_larger_than
from tests.session.harness import Client, Node
from tests.vhost.stand_in import Clock

from brokerd.queues.deduplication import Rule
from brokerd.store import key_log
from brokerd.store.commit_log import CommitLog, Message, Plan, encode_plan
from brokerd.store.disk import Disk
from brokerd.store.format import KEY_ROW, NOT_LASTING, SECRET, SECRET_MAGIC, SECRET_VERSION, crc32c
from brokerd.store.key_files import read
from brokerd.store.key_log import ROOM_ROWS, KeyLog
from brokerd.store.recovery import recover
from brokerd.testing.disk import FillableDisk
from brokerd.vhost.commits import Start, finish_commits
from brokerd.vhost.features import DuplicatesOnDemand
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header

DEDUPLICATES = {"x-message-deduplication": True}


class Machine:
    """A vhost with a client; ``kill`` is kill -9 and another start."""

    def __init__(self, directory, kind=DuplicatesOnDemand):
        self.directory = directory
        self.kind = kind
        self.clock = Clock()
        self.followed = []
        self.start()

    def start(self):
        self.node = Node(self.directory)
        self.node.core.clock = self.clock
        self.vhost = self.node.vhost
        self.vhost.duplicates = self.kind(self.vhost.directory, self.clock, None, self.followed.append)
        self.client = Client(self.node).open()

    def kill(self, *, suspect=False):
        before = self.vhost
        self.start()
        for name, queue in before.queues.items():
            again = self.vhost._make_queue(name, durable=True, auto_delete=False, arguments=queue.arguments)
            again.begin_recovery(None)
            recover(again, Disk(), suspect, print)
        for exchange in before.exchanges.values():
            if exchange.name and not exchange.name.startswith("amq."):
                again = self.vhost._make_exchange(exchange.name, exchange.type, durable=exchange.durable,
                                                  auto_delete=False, internal=False, arguments=exchange.arguments)
                for binding in exchange.bindings():
                    again.bind(self.vhost.queues[binding.destination.name], binding.routing_key, binding.arguments)
        self.vhost.apply_rules()
        self.vhost.take_up_features(suspect=suspect)

    def queue(self, name="q", **arguments):
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.vhost.add_queue(name, durable=True, auto_delete=False, arguments={**DEDUPLICATES, **arguments})

    def exchange(self, name="x", queue="other", *, durable=True, **arguments):
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        exchange = self.vhost.add_exchange(name, "fanout", durable=durable, auto_delete=False, internal=False,
                                           arguments={**DEDUPLICATES, **arguments})
        if queue not in self.vhost.queues:
            self.vhost.add_queue(queue, durable=True, auto_delete=False, arguments={})
        exchange.bind(self.vhost.queues[queue], "")
        return exchange

    def publish(self, key, *, client=None, **how):
        return (client or self.client).raw(self.octets_of(key, **how))

    def octets_of(self, key, *, exchange="", routing_key="q", bits=None, delivery_mode=2, body=b"m", **headers):
        headers = {"x-deduplication-header": key, **headers}
        header = encode_header(len(body), Properties(headers=headers, delivery_mode=delivery_mode))
        method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, **(bits or {}))
        return method.frame(1) + header_frame(1, header) + body_frames(1, body, 131_072)

    def ready(self, name="q"):
        return self.vhost.queues[name].ready


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def key_files(machine):
    return sorted(name for name in os.listdir(machine.directory) if name.startswith("keys."))


def test_duplicates_are_counted_once_and_no_hash_key_is_made_before_the_first_key(machine):
    q = machine.queue()
    header = encode_header(0, Properties(delivery_mode=2))
    machine.client.raw(methods.BasicPublish(routing_key="q").frame(1) + header_frame(1, header))
    assert key_files(machine) == []
    for key in ("a", "a", "b", "a"):
        machine.publish(key)
    assert (q.ready, q.duplicates) == (3, 2)
    assert key_files(machine) == ["keys.secret"]


def test_a_queue_knows_its_keys_after_kill_9_and_after_a_power_cut(machine):
    machine.queue()
    machine.queue("p", max_priority=2)
    for key in ("a", "b", "c"):
        machine.publish(key)
        machine.publish(key, routing_key="p")
    for suspect in (False, True):
        machine.kill(suspect=suspect)
        for key in ("a", "b", "c"):
            machine.publish(key)
            machine.publish(key, routing_key="p")
        assert (machine.ready(), machine.ready("p")) == (3, 3)


def test_after_a_start_the_window_is_as_large_and_its_keys_as_old_as_before(machine):
    machine.queue(cache_size=2, cache_ttl=1000)
    for key in ("a", "b", "c"):
        machine.publish(key)
    machine.publish("own", **{"x-cache-ttl": 5000})
    machine.kill()
    machine.clock.advance(999)
    for key in ("c", "own"):
        machine.publish(key)
    assert machine.ready() == 4
    machine.publish("a")        # had fallen out
    machine.clock.advance(1)
    machine.publish("own")
    assert machine.ready() == 5
    machine.kill()
    machine.publish("own")
    machine.clock.advance(4000)
    machine.publish("own")
    assert machine.ready() == 6


def test_an_exchange_knows_its_keys_after_kill_9_but_not_those_of_another_of_its_name(machine):
    machine.exchange()
    for key in ("a", "b"):
        machine.publish(key, exchange="x")
    machine.kill()
    for key in ("a", "b", "c"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 3
    machine.vhost.delete_exchange(machine.vhost.exchanges["x"])
    assert key_files(machine) == ["keys.secret"]
    machine.exchange()
    machine.publish("a", exchange="x")
    assert machine.ready("other") == 4


@pytest.mark.parametrize("suspect", [False, True])
def test_a_new_exchange_knows_no_keys_of_one_of_its_name_whose_files_are_left(machine, monkeypatch, suspect):
    monkeypatch.setattr(key_log, "ROWS_MIN", 1)         # Two files: the new exchange writes over the first one.
    machine.exchange()
    for key in ("a", "b"):
        machine.publish(key, exchange="x")
    left = {name: Path(machine.directory, name).read_bytes() for name in key_files(machine) if name != "keys.secret"}
    machine.vhost.delete_exchange(machine.vhost.exchanges["x"])
    for name, octets in left.items():
        Path(machine.directory, name).write_bytes(octets)
    machine.clock.advance(200)
    machine.exchange()
    machine.publish("a", exchange="x")
    assert machine.ready("other") == 3
    machine.kill(suspect=suspect)
    for key in ("a", "b"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 4
    assert len(left) == 2


def test_after_a_power_cut_keys_are_found_in_records_older_than_the_last_row(machine):
    """A row of a transient message is not believed then; but its message may have reached the disk."""
    machine.exchange()
    machine.publish("transient", exchange="x", delivery_mode=1)
    machine.clock.advance(5000)
    machine.publish("b", exchange="x")
    machine.followed[-1].begin_sync()()
    machine.kill(suspect=True)
    for key in ("transient", "b"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 2


def test_without_a_readable_hash_key_messages_go_through(machine):
    """As of a later release, which put the broker back: time does not help, so no publish waits."""
    octets = SECRET.pack(SECRET_MAGIC, SECRET_VERSION + 1, bytes(16), 0)[:-4]
    Path(machine.directory, "keys.secret").write_bytes(octets + crc32c(octets).to_bytes(4, "little"))
    machine.exchange()
    for key in ("a", "a"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 2


@pytest.fixture
def dies_before_rows(monkeypatch):
    """The broker dies between the records of a chunk and the rows of their keys."""
    @contextmanager
    def dies():
        with monkeypatch.context() as patch:
            patch.setattr(KeyLog, "append_rows", lambda *_: None)
            yield

    return dies


def test_the_key_of_a_message_stored_just_before_the_broker_died_is_found_in_its_record(machine, dies_before_rows):
    machine.exchange(cache_ttl=1000)
    machine.publish("a", exchange="x")
    with dies_before_rows():
        machine.publish("b", exchange="x", **{"x-cache-ttl": 5000})
    machine.kill()
    for key in ("a", "b"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 2
    machine.clock.advance(1000)
    machine.publish("b", exchange="x")
    machine.kill()
    machine.publish("b", exchange="x")
    assert machine.ready("other") == 2
    machine.publish("a", exchange="x")
    assert machine.ready("other") == 3


@pytest.mark.parametrize("key", ["a", 1, 1.5])
def test_the_first_key_of_all_is_found_in_its_record_too(machine, dies_before_rows, key):
    machine.exchange()
    with dies_before_rows():
        machine.publish(key, exchange="x")
    machine.kill()
    log = machine.vhost.duplicates.get().exchanges["x"].log
    assert machine.followed[1:] == [log]        # The next sync marks its row.
    machine.publish(key, exchange="x")
    assert machine.ready("other") == 1


def test_all_keys_of_the_last_chunk_are_found_in_their_records_in_however_many_segments(machine, dies_before_rows):
    machine.exchange(cache_size=1000)
    machine.publish("first", exchange="x")
    machine.clock.advance(2000)
    keys = [f"{n}" for n in range(300)]
    with dies_before_rows():
        for key in keys:
            assert machine.publish(key, exchange="x", body=bytes(100_000)) == []
    assert machine.ready("other") == 301
    assert len(machine.vhost.queues["other"].segments()) > 3
    machine.kill()
    for key in ("first", *keys):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 301


def test_of_messages_in_a_queue_with_keys_of_its_own_the_last_key_at_most_is_missed(machine, monkeypatch):
    machine.queue(deduplication_header="id")
    machine.exchange(queue="q")
    written, append = [], KeyLog.append_rows

    def append_and_die(log, rows, *more):
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(rows)
        append(log, rows, *more)

    with monkeypatch.context() as patch:
        patch.setattr(KeyLog, "append_rows", append_and_die)
        machine.client.raw(b"".join(machine.octets_of(str(n), exchange="x", id=str(n)) for n in range(5)))
    assert machine.ready() == 5
    machine.kill()
    for n in range(5):
        machine.publish(str(n), exchange="x", id=f"other {n}")
    assert machine.ready() == 6


@pytest.mark.parametrize("mode", [1, 2])
def test_a_message_for_immediate_delivery_that_one_queue_knows_and_the_other_cannot_deliver_is_returned(machine, mode):
    machine.exchange(queue="one", name="y")
    machine.queue()
    exchange = machine.vhost.add_exchange("f", "fanout", durable=True, auto_delete=False, internal=False, arguments={})
    for name in ("one", "q"):
        machine.vhost.bind(exchange, machine.vhost.queues[name], "", {})
    machine.publish("a", delivery_mode=mode)
    said = machine.publish("a", exchange="f", delivery_mode=mode, bits={"immediate": True})
    assert [method.reply_code for _, method in said[:1]] == [313]
    assert machine.ready("one") == 0


def decide(machine, *places):
    """A transaction that was decided when the broker died: publishes to exchange x, each (key, queues)."""
    entry = CommitLog(f"{machine.vhost.directory}/tx.7.1", Disk())
    entries = []
    for number, (key, queues) in enumerate(places, 1):
        properties = encode_header(0, Properties(headers={"x-deduplication-header": key}, delivery_mode=2))[12:]
        place = entry.add(Message(number, b"x", b"", properties, b"m"))
        entries.append((place.position, [machine.vhost.queues[name] for name in queues]))
    entry.decide(7, 1, encode_plan(Plan(entries, [])))


def finish(machine):
    lines = []
    finish_commits(machine.vhost, Start(Disk(), False, lines.append, lambda: None, lambda: 99))
    return lines[0].rpartition(": ")[2]


def test_a_transaction_that_a_start_brings_to_its_end_stores_no_key_that_the_exchange_got_meanwhile(machine):
    machine.exchange()
    decide(machine, ("a", ["other"]), ("b", ["other"]), ("b", ["other"]))
    machine.publish("a", exchange="x")
    machine.kill()
    assert finish(machine) == "1 stored, 0 settled"
    assert machine.ready("other") == 2
    for key in ("a", "b"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 2


def test_what_a_start_decided_before_it_was_cut_off_is_stored_though_the_exchange_knows_its_key(machine):
    machine.exchange()
    decide(machine, ("a", ["other"]))
    directory = machine.vhost.directory
    os.rename(f"{directory}/tx.7.1", f"{directory}/tx.again.7")
    machine.publish("a", exchange="x")
    machine.kill()
    assert finish(machine) == "1 stored, 0 settled"


def test_a_message_of_a_transaction_that_one_queue_has_gets_into_the_other_though_the_exchange_knows_its_key(machine):
    machine.exchange()
    machine.exchange(queue="second", name="y")
    header = encode_header(0, Properties(headers={"x-deduplication-header": "a"}, delivery_mode=2))[12:]
    queue = machine.vhost.queues["other"]
    machine.publish("a", exchange="x")
    assert machine.ready("other") == 1
    queue.purge()
    machine.node.core.put((queue,), b"x", b"", header, b"m", connection=7, channel=1, publish_seq=1, sync=True)
    decide(machine, ("a", ["other", "second"]))
    machine.kill()
    assert finish(machine) == "1 stored, 0 settled"
    assert (machine.ready("other"), machine.ready("second")) == (1, 1)


def test_the_group_commit_follows_the_keys_of_persistent_messages(machine):
    machine.exchange()
    machine.publish("a", exchange="x", delivery_mode=1)
    assert machine.followed == []
    machine.publish("b", exchange="x")
    assert machine.followed == [machine.vhost.duplicates.get().exchanges["x"].log]


def test_a_row_says_whether_the_next_sync_covers_its_message(machine):
    machine.exchange()
    for key, mode in (("a", 1), ("b", 2), (1.5, 1), (2.5, 2)):      # The last two are not for the data plane.
        machine.publish(key, exchange="x", delivery_mode=mode)
    log = machine.vhost.duplicates.get().exchanges["x"].log
    rows = KEY_ROW.iter_unpack(read(log.path(1), Disk(), log=True).rows)
    assert [order & NOT_LASTING != 0 for order, hashed, _ in rows if hashed] == [True, False, True, False]


def test_an_exchange_that_is_not_durable_has_no_files(machine):
    machine.exchange(durable=False)
    for key in ("a", "a"):
        machine.publish(key, exchange="x")
    assert machine.ready("other") == 1
    assert key_files(machine) == ["keys.secret"]


def test_keys_of_exchange_and_queue_are_told_apart(machine):
    machine.queue(deduplication_header="id")
    machine.exchange(queue="q")
    machine.publish("a", exchange="x", id="1")
    machine.publish("b", exchange="x", id="1")      # known to the queue
    machine.publish("a", exchange="x", id="2")      # known to the exchange
    machine.publish("c", id="a")
    assert machine.ready() == 2
    machine.kill()
    machine.publish("a", exchange="x", id="3")
    machine.publish("c", exchange="x", id="a")
    assert machine.ready() == 2


def test_what_was_to_be_delivered_at_once_and_was_not_is_not_known(machine):
    q = machine.queue()
    machine.publish("a", bits={"immediate": True})
    machine.publish("a")
    assert (q.ready, q.duplicates) == (1, 0)


def test_another_rule_keeps_the_keys_and_none_forgets_them(machine):
    q = machine.queue()
    machine.publish("a")
    q._deduplicate(Rule(size=4))
    q.rest()
    machine.publish("a")
    assert (q.ready, q.duplicates) == (1, 1)
    q._deduplicate(None)
    machine.publish("a")
    assert (q.ready, q.window) == (2, None)


def test_the_key_files_of_a_queue_go_with_its_rule(machine):
    q = machine.queue()
    machine.publish("a")
    path, rows = f"{q.directory}/keys.0000000001", q.key_rows(1, 0)
    q.deduplication.write(path, 1, rows)
    q.deduplication.watch_file(path, rows)
    assert os.path.exists(path)
    q._deduplicate(None)
    assert not os.path.exists(path)
    q._deduplicate(None)


def test_a_rule_that_comes_back_finds_the_keys_in_the_records(machine):
    q = machine.queue()
    machine.publish("a")
    q._deduplicate(None)
    machine.publish("b")
    q._deduplicate(Rule())
    machine.vhost.forget_routes()
    machine.publish("a")
    machine.publish("b")
    assert q.ready == 3


def test_what_is_published_elsewhere_is_still_remembered_as_before(machine):
    machine.queue()
    plain = machine.vhost.add_queue("plain", durable=False, auto_delete=False, arguments={})
    access = machine.vhost.accesses["guest"]
    header = encode_header(0, Properties(headers={"x-deduplication-header": "a"}))
    assert access.resolve(b"", b"plain", header).cacheable
    assert not access.resolve(b"", b"q", header).cacheable
    assert plain.duplicates == 0


def test_an_exchange_knows_what_its_queues_have_had_by_another_way(machine):
    q = machine.queue()
    plain = machine.vhost.add_queue("plain", durable=False, auto_delete=False, arguments={})
    machine.vhost.add_exchange("x", "fanout", durable=False, auto_delete=False, internal=False, arguments=DEDUPLICATES)
    machine.vhost.bind(machine.vhost.exchanges["x"], q, "", {})
    machine.publish("a")
    machine.publish("a", exchange="x")
    machine.vhost.bind(machine.vhost.exchanges["x"], plain, "", {})
    machine.publish("a", exchange="x")
    assert (q.ready, q.duplicates, plain.ready) == (1, 1, 0)
    assert machine.vhost.duplicates.get().exchanges["x"].duplicates == 1


def test_a_message_that_waited_for_room_is_compared_with_those_that_came_meanwhile(machine):
    q = machine.queue()
    other = Client(machine.node).open()
    with no_larger_than(1000):
        machine.publish("a")
        machine.publish("a", client=other)
        assert q.ready == 0
    for each in (machine.client, other):
        each.connection.unblock()
    assert (q.ready, q.duplicates) == (1, 1)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("key", ["plain", 1.5])
@pytest.mark.parametrize("before", [(), ("secret",), ("secret", "log")])
def test_a_publish_waits_until_its_key_can_be_kept(machine, key, before, several):
    disk = FillableDisk()
    machine.vhost.duplicates = DuplicatesOnDemand(machine.vhost.directory, machine.clock, disk, machine.followed.append)
    machine.exchange()
    if several:
        machine.queue("with a window")
        machine.vhost.bind(machine.vhost.exchanges["x"], machine.vhost.queues["with a window"], "", {})
    known = machine.vhost.duplicates.get().exchanges["x"]
    if "secret" in before:
        known._files.keep_hash_key()
    if "log" in before:
        known.log.begin()
    disk.full = True
    machine.publish(key, exchange="x")
    assert (machine.ready("other"), machine.client.connection.stopped) == (0, True)
    disk.full = False
    machine.client.connection.unblock()
    machine.publish("later", exchange="x")
    assert machine.ready("other") == 2
    machine.kill()
    machine.publish(key, exchange="x")
    assert machine.ready("other") == 2


@pytest.mark.parametrize("key", ["plain", 1.5])
def test_a_publish_to_a_queue_waits_until_its_key_can_be_known_again(machine, key):
    disk = FillableDisk()
    machine.vhost.duplicates = DuplicatesOnDemand(machine.vhost.directory, machine.clock, disk, machine.followed.append)
    q = machine.queue()
    disk.full = True
    machine.publish(key)
    assert q.ready == 0
    disk.full = False
    machine.client.connection.unblock()
    assert q.ready == 1
    machine.kill()
    machine.publish(key)
    assert machine.ready() == 1


def test_keys_that_have_their_room_are_kept_on_a_full_disk(machine):
    disk = FillableDisk()
    machine.vhost.duplicates = DuplicatesOnDemand(machine.vhost.directory, machine.clock, disk, machine.followed.append)
    machine.exchange(cache_size=10_000)
    machine.publish("first", exchange="x")
    disk.full = True
    for number in range(2 * ROOM_ROWS):
        machine.publish(number, exchange="x")
    stored = machine.ready("other")
    assert (stored, machine.client.connection.stopped) == (ROOM_ROWS, True)
    machine.kill()
    machine.publish("first", exchange="x")
    for number in range(stored - 1):
        machine.publish(number, exchange="x")
    assert machine.ready("other") == stored


# --- scopes, contents, actions


def bodies(machine, name="q"):
    return [row[6] for row in machine.vhost.queues[name].browse(0, 100)]


def get(machine, name="q", *, no_ack=True):
    return machine.client.send((1, methods.BasicGet(queue=name, no_ack=no_ack)))


def test_a_key_counts_in_its_group_alone(machine):
    machine.queue(deduplication_scope="group")
    for group in ("a", "b", "a", "b"):
        machine.publish("k", **{"group-id": group})
    machine.publish("k")
    machine.publish("k", **{"group-id": 1.5})       # The control plane looks for this one.
    machine.publish("k", **{"group-id": 1.5})
    assert (machine.ready(), machine.vhost.queues["q"].duplicates) == (4, 3)
    machine.kill()
    for group in ("a", "b"):
        machine.publish("k", **{"group-id": group})
    assert machine.ready() == 4


def test_a_group_is_where_the_queues_groups_are(machine):
    machine.queue(deduplication_scope="group", message_group_header="customer")
    for customer in ("a", "b", "a"):
        machine.publish("k", customer=customer, **{"group-id": "one"})
    assert machine.ready() == 2


def test_a_body_is_the_key_of_a_message_without_one(machine):
    machine.queue(deduplication_content=True)
    machine.queue("levels", deduplication_content=True, max_priority=1)
    for name in ("q", "levels"):
        for body in (b"a", b"b", b"a", b"", b""):
            machine.publish(None, body=body, routing_key=name)
        machine.publish("k", body=b"a", routing_key=name)     # Its header comes first.
        assert bodies(machine, name) == [b"a", b"b", b"", b"a"]
    machine.kill()
    machine.publish(None, body=b"b")
    machine.publish(None, body=b"c")
    assert bodies(machine)[3:] == [b"a", b"c"]


def test_a_waiting_key_counts_until_its_message_is_settled(machine):
    machine.queue(deduplication_scope="waiting")
    for key in ("a", "b", "a"):
        machine.publish(key)
    assert machine.ready() == 2
    get(machine)
    machine.publish("a")
    machine.publish("b")
    assert machine.ready() == 2
    get(machine, no_ack=False)
    machine.publish("b")        # It is out, and may come back.
    assert machine.ready() == 1
    machine.kill()
    for key in ("a", "b", "c"):
        machine.publish(key)
    assert machine.ready() == 3
    machine.client.send((1, methods.QueuePurge(queue="q")))
    for key in ("a", "b", "c", "a"):
        machine.publish(key)
    assert machine.ready() == 3


def test_a_waiting_key_counts_while_its_message_waits_in_any_segment(tmp_path):
    machine = Machine(tmp_path)
    q = machine.queue(deduplication_scope="waiting", max_length=500)
    for number in range(2000):
        machine.publish(f"k{number}", body=b"x" * 900)
    machine.node.core.turn()
    assert q.ready == 500
    assert len(q.deduplication.window) == 500
    for suspect in (False, False):
        machine.kill(suspect=suspect)
        for number in (1499, 1500, 1999):
            machine.publish(f"k{number}", body=b"y")
        assert bodies(machine)[-1] == b"x" * 900 or suspect
    assert key_files(machine) == ["keys.secret"]


def test_a_refused_duplicate_is_told_to_its_publisher(machine):
    machine.queue(deduplication_action="nack")
    machine.client.send((1, methods.ConfirmSelect()))
    machine.node.core.turn()
    assert machine.publish("a", delivery_mode=1) == [(1, methods.BasicAck(delivery_tag=1))]
    assert machine.publish("a", delivery_mode=1) == [(1, methods.BasicNack(delivery_tag=2))]
    assert machine.publish(1.5, delivery_mode=1) == [(1, methods.BasicAck(delivery_tag=3))]
    assert machine.publish(1.5, delivery_mode=1) == [(1, methods.BasicNack(delivery_tag=4))]
    assert machine.ready() == 2


def test_a_newer_message_replaces_the_older_one_that_is_ready(machine):
    q = machine.queue(deduplication_action="replace")
    for key, body in (("a", b"1"), ("b", b"2"), ("a", b"3"), (1.5, b"4"), (1.5, b"5"), ("a", b"6")):
        machine.publish(key, body=body)
        machine.node.core.turn()
    assert bodies(machine) == [b"2", b"5", b"6"]
    assert q.duplicates == 3
    get(machine, no_ack=False)
    machine.publish("b", body=b"7")     # The older one is out: both are done.
    assert bodies(machine) == [b"5", b"6", b"7"]
    machine.kill()
    machine.publish("a", body=b"8")
    assert bodies(machine) == [b"2", b"5", b"7", b"8"]


def test_a_scope_that_changes_takes_the_keys_of_the_new_scope(machine):
    q = machine.queue()
    for key in ("a", "b"):
        machine.publish(key)
    get(machine)
    q._deduplicate(Rule(scope="waiting"))
    machine.vhost.forget_routes()
    for key in ("a", "b"):
        machine.publish(key)
    assert q.ready == 2
    get(machine)
    q._deduplicate(Rule())
    machine.vhost.forget_routes()
    for key in ("a", "b"):
        machine.publish(key)
    assert q.ready == 1


def test_a_rule_over_a_long_backlog_finds_its_keys_in_pieces(machine):
    q = machine.queue()
    for number in range(3000):
        machine.publish(f"k{number}", body=b"x" * 500)
    q._deduplicate(None)
    q._deduplicate(Rule(size=10_000))
    while machine.node.core.has_errands:
        machine.node.core.go_on()
    assert len(q.deduplication.window) == 3000
    machine.vhost.forget_routes()
    machine.publish("k0")
    machine.publish("k2999")
    assert q.ready == 3000


def test_a_newer_message_replaces_the_older_one_that_waits_in_its_group(machine):
    machine.queue(deduplication_action="replace", message_group="exclusive")
    for key, body in (("a", b"1"), ("b", b"2"), ("c", b"3")):
        machine.publish(key, body=body, **{"group-id": "g"})
    get(machine, no_ack=False)
    get(machine, no_ack=False)          # Those behind the first one have been looked at.
    machine.publish("b", body=b"4", **{"group-id": "g"})
    machine.node.core.turn()
    assert machine.vhost.queues["q"].message_count == 2
    found = []
    for tag in (1, 2, 3):
        machine.client.send((1, methods.BasicAck(delivery_tag=tag)))
        found.append(get(machine, no_ack=False)[-1])
    assert [frame.payload for frame in found[:2]] == [b"3", b"4"]


def test_a_newer_message_replaces_the_older_one_that_waits_for_its_retry(machine):
    q = machine.queue(deduplication_action="replace", delayed_retry_type="all", delayed_retry_min=1000,
                      delayed_retry_max=1000)
    machine.publish("a", body=b"1")
    get(machine, no_ack=False)
    machine.client.send((1, methods.BasicNack(delivery_tag=1, requeue=True)))
    assert q.gate.waiting == 1
    machine.publish("a", body=b"2")
    machine.node.core.turn()
    assert (bodies(machine), q.gate.waiting, q.duplicates) == ([b"2"], 0, 1)


def test_of_keys_that_came_together_a_start_knows_the_last(machine):
    machine.exchange(cache_size=3)
    keys = [f"k{number}" for number in range(40)]
    machine.client.raw(b"".join(machine.octets_of(key, exchange="x") for key in keys))
    machine.kill()
    machine.client.raw(b"".join(machine.octets_of(key, exchange="x") for key in keys[-3:]))
    assert machine.ready("other") == 40

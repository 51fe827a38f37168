"""A directory is judged at one instant, however much a broker writes while its files are read."""

import os
import threading

import numpy as np
import pika
import pytest
import runs
import writer
from tests.audit import plant

from brokerd.audit import layout as shapes
from brokerd.audit import segment
from brokerd.audit.cut import find_queues, is_open, last_time
from brokerd.audit.files import Source, open_source
from brokerd.audit.scan import DEFAULTS, scan
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000


def mark(root):
    with open(f"{root}/{layout.RUNNING_FILE}", "w") as file:
        file.write("boot whole\n")
    return root


def violated(judged):
    return [(row["audit"], row["reason"]) for one in judged for row in one.audits if row["verdict"] == "violated"]


class Busy(Source):
    """Before each reading of a file of a segment, the broker writes something."""

    write = None

    def read(self, rel, start=0, length=-1):
        if self.write is not None and "0000" in rel:
            write, self.write = self.write, None
            write()
            self.write = write
        return super().read(rel, start, length)


@pytest.mark.parametrize("levels", [0, 2], ids=["one level", "three levels"])
def test_what_is_written_between_two_readings_accuses_nobody(tmp_path, monkeypatch, levels):
    monkeypatch.setattr(segment, "READINGS_MAX", 2)
    run = runs.Run(tmp_path / "run", max_priority=levels, prefetch=6)
    run.steps(150, returns=0 if levels else 0.1)
    mark(run.root)
    source = Busy(run.root)
    source.write = lambda: run.steps(2, most=8, returns=0 if levels else 0.3)
    before = run.count
    (judged,) = audit(source)
    assert run.count > before + 20
    assert violated([judged]) == []
    assert judged.inputs["messages"] <= run.count
    source.write = None
    (whole,) = audit(source)
    assert whole.inputs["messages"] > judged.inputs["messages"]
    assert violated([whole]) == []
    run.finish(str(tmp_path / "end"))


def test_all_is_judged_where_no_broker_writes_any_more(tmp_path):
    level = writer.simple_level(100, start=T)
    root = writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=30))
    counts = []
    for _ in range(2):
        (judged,) = audit(open_source(root))
        counts.append((judged.inputs["messages"], judged.inputs["events"]))
        mark(root)
    assert counts == [(100, 200), (100, 200)]


def test_a_cut_leaves_out_records_events_and_entries_that_are_later(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(10, start=T), writer.Options())
    source = open_source(root)
    ((triple,),) = [queue.triples for queue in source.queues()]
    # The fourth message came at 12,000, went out at 13,000 and was acked at 14,000.
    for cut, records, events, entries in ((13_999, 4, 7, 3), (14_000, 4, 8, 4), (11_999, 3, 6, 3), (36_000, 10, 18, 9)):
        data = segment.read_triple(source, triple._replace(cut=T + cut))
        assert (data.headers.size, data.events.size, data.entries.size) == (records, events, entries)
        found = scan(source, triple._replace(cut=T + cut), DEFAULTS)
        assert (found.records, found.events, found.damage) == (records, events, [])


def test_a_cut_puts_the_cursor_back_to_where_it_stood(tmp_path):
    """Messages go out in turn, and the tenth is set aside: its entry is the last one."""
    level = writer.simple_level(10, start=T)
    level.events = level.events[level.events["seq"] < 10]
    root = writer.write_queue(tmp_path / "data", level, writer.Options())
    story = plant.Story(f"{root}/vhost/queue")
    story.tell(story.row(10), layout.SET_ASIDE)
    story.save()
    writer.put_word(tmp_path / "data/vhost/queue/acks.0000000001", 24, 1 << 20)
    source = open_source(root)
    ((triple,),) = [queue.triples for queue in source.queues()]
    whole = segment.read_triple(source, triple)
    assert whole.delivered_below == 1 << 20
    # The fourth message came at 12,000, went out at 13,000 and was acked at 14,000.
    for cut, passed in ((12_999, 3), (13_999, 4), (14_000, 4), (17_000, 5), (33_500, 9)):
        data = segment.read_triple(source, triple._replace(cut=T + cut))
        assert data.delivered_below == whole.positions[passed]
    assert segment.read_triple(source, triple._replace(cut=T + 35_000)).delivered_below == 1 << 20


@pytest.mark.parametrize("acked_before_it", [True, False])
def test_a_message_that_is_rejected_after_the_cut_accuses_nobody(tmp_path, acked_before_it):
    """Its entry says that it was set aside, and no event tells when.  It had gone out before the cut, as others behind
    it had: so the cursor stood behind them all, whatever was set aside since."""
    rejected = layout.REASON_REJECTED
    rows = [(T + 100 + n, n, layout.DELIVERED) for n in range(1, 11)]
    rows += [(T + 200, 1, layout.ACKED)] if acked_before_it else []
    rows += [(T + 210, 3, layout.SET_ASIDE, layout.WAS_OUT, 1, 1), (T + 220, 3, layout.DEAD_LETTERED, rejected, 1, 0),
             (T + 230, 11, layout.DELIVERED), (T + 240, 12, layout.SET_ASIDE, layout.WAS_OUT)]
    level = writer.Level(writer.messages(range(1, 14), [T + n for n in range(13)]), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(settings={"dead_letter_exchange": "dlx"}))
    source = open_source(root)
    ((triple,),) = [queue.triples for queue in source.queues()]
    for cut, passed in ((T + 105, 5), (T + 150, 10), (T + 225, 10)):
        data = segment.read_triple(source, triple._replace(cut=cut))
        assert data.delivered_below in (data.positions[passed], data.positions[passed - 1] + 1)
        found = scan(source, triple._replace(cut=cut), DEFAULTS)
        assert (found.results["agreement"].found, found.results["agreement"].uncovered) == (0, 0)


def test_a_message_of_a_group_that_returns_after_the_cut_accuses_nobody(tmp_path):
    """In place of the return stands an entry that sets it aside in its group, and the hand-out behind it is later."""
    rows = [(T + 110, 1, layout.DELIVERED), (T + 200, 2, layout.DELIVERED),
            (T + 300, 1, layout.RETURNED, layout.CAUSE_CHANNEL, 1, 1),
            (T + 301, 1, layout.SET_ASIDE, layout.WAS_OUT, 1, 1),
            (T + 310, 1, layout.DELIVERED, layout.REDELIVERED, 1, 1), (T + 320, 1, layout.ACKED, 0, 1, 1)]
    level = writer.Level(writer.messages(range(1, 4), [T + n for n in range(3)]), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options(settings={"groups": {"mode": "exclusive"}}))
    path = f"{root}/vhost/queue/acks.0000000001"
    with open(path, "r+b") as file:
        octets = file.read()
        entries = np.frombuffer(octets, shapes.ENTRY, offset=64)
        without = entries[entries["kind"] & 0x0F != layout.RETURNED]
        file.seek(64)
        file.write(without.tobytes().ljust(len(octets) - 64, b"\0"))
    writer.put_word(path, 32, int(np.count_nonzero(without["position"])))
    source = open_source(root)
    ((triple,),) = [queue.triples for queue in source.queues()]
    for cut, entries in ((T + 250, 0), (T + 305, 1), (T + 315, 2)):
        assert segment.read_triple(source, triple._replace(cut=cut)).entries.size == entries
        found = scan(source, triple._replace(cut=cut), DEFAULTS)
        assert (found.results["agreement"].found, found.results["agreement"].uncovered) == (0, 0)


def test_a_replay_after_the_cut_is_none_that_an_earlier_kill_cut_off(tmp_path):
    """Its entry is there, and its event is left out with those that are later."""
    done = [(T + 100 * seq + k, seq, type_) for seq in (1, 2) for k, type_ in (
        (0, layout.DELIVERED), (1, layout.ACKED))]
    rows = [*done, (T + 300, 0, layout.STARTED, layout.RESTARTED), (T + 400, 3, layout.DELIVERED),
            (T + 500, 1, layout.REPLAYED), (T + 501, 1, layout.EVENT_REPLAYED),
            (T + 510, 1, layout.DELIVERED, layout.REDELIVERED | layout.BEFORE_START), (T + 520, 1, layout.ACKED)]
    level = writer.Level(writer.messages(range(1, 5), [T + n for n in range(4)]), writer.events(rows))
    root = writer.write_queue(tmp_path / "data", level, writer.Options())
    source = open_source(root)
    ((triple,),) = [queue.triples for queue in source.queues()]
    for cut, again in ((T + 450, 0), (T + 505, 1), (T + 515, 2), (T + 600, 3)):
        data = segment.read_triple(source, triple._replace(cut=cut))
        assert (data.events_again.size, data.entries_again.size, data.cut_off) == (again, again, ())


def test_the_cut_is_the_time_of_the_last_record_or_event_of_any_level(tmp_path):
    high = writer.Level(writer.messages([2, 4], [T + 20, T + 40]), writer.events([(T + 60, 2, layout.DELIVERED)]))
    low = writer.Level(writer.messages([1, 3], [T + 10, T + 30]), writer.events([(T + 50, 1, layout.DELIVERED)]))
    root = writer.write_queue(tmp_path / "data", {0: low, 1: high}, writer.Options(segment_messages=1))
    source = open_source(root)
    assert last_time(source, source.queues()[0]) == T + 60
    os.truncate(f"{root}/vhost/queue/prio.001/{layout.journal_name(1)}", 64)
    assert last_time(source, source.queues()[0]) == T + 50
    for name in ("queue", "queue/prio.001"):
        for number in (1, 2):
            os.unlink(f"{root}/vhost/{name}/{layout.journal_name(number)}")
    assert last_time(source, source.queues()[0]) == T + 40


def test_a_folder_is_open_while_the_marker_of_a_broker_lies_above_it(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(10), writer.Options())
    folders = [root, f"{root}/vhost", f"{root}/vhost/queue"]
    assert [is_open(Source(folder)) for folder in folders] == [False] * 3
    assert {triple.cut for queue in find_queues(Source(root)) for triple in queue.triples} == {None}
    mark(root)
    assert [is_open(Source(folder)) for folder in folders] == [True] * 3
    mark(tmp_path)
    os.unlink(f"{root}/{layout.RUNNING_FILE}")
    assert [is_open(Source(folder)) for folder in folders] == [False] * 3


def test_a_queue_that_is_made_during_the_sweep_is_not_judged(tmp_path, monkeypatch):
    root = mark(writer.write_queue(tmp_path / "data", writer.simple_level(10), writer.Options()))
    source = open_source(root)

    def made(*_):
        writer.write_queue(root, writer.simple_level(5), writer.Options(), queue="new", folder="new")
        return T

    monkeypatch.setattr("brokerd.audit.cut.last_time", made)
    assert {queue.queue: [t.cut for t in queue.triples] for queue in find_queues(source)} == {"q": [T], "new": [0]}


def test_ten_looks_at_a_working_broker_with_priorities_find_nothing_wrong(broker):
    stop, errors = threading.Event(), []

    def work(what):
        connection = None
        try:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0))
            what(connection.channel())
        except Exception as error:
            errors.append(error)
        finally:
            stop.set()
            if connection is not None and connection.is_open:
                connection.close()

    def publish(channel):
        sent = 0
        while not stop.is_set():
            sent += 1
            channel.basic_publish("", "orders", bytes(sent % 900), pika.BasicProperties(priority=sent * 7 % 5))

    def consume(channel):
        channel.basic_qos(prefetch_count=30)
        for method, _, _ in channel.consume("orders", inactivity_timeout=0.1):
            if stop.is_set():
                return
            if method is None:
                continue
            if method.delivery_tag % 11 == 0 and not method.redelivered:
                channel.basic_nack(method.delivery_tag)
            else:
                channel.basic_ack(method.delivery_tag)

    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=0)) as connection:
        connection.channel().queue_declare("orders", durable=True, arguments={
            "x-order-journal": True, "x-max-priority": 4})
    clients = [threading.Thread(target=work, args=(what,)) for what in (publish, publish, consume)]
    for client in clients:
        client.start()
    try:
        looks, messages = 0, 0
        while looks < 10 and not stop.is_set():
            (judged,) = audit(open_source(str(broker.directory)))
            if judged.inputs["messages"] > messages:    # Else nothing was written since the last look.
                assert violated([judged]) == []
                looks, messages = looks + 1, judged.inputs["messages"]
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert errors == []
    assert looks == 10

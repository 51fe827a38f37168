"""Figures of a segment: what happened in which hour, how long messages took, and events counted as the broker does."""

import writer

from brokerd.audit.figures import HOUR, counters, latency
from brokerd.audit.files import open_source
from brokerd.audit.lifecycle import lives
from brokerd.audit.scan import scan
from brokerd.audit.segment import read_triple
from brokerd.store import format as layout

START = HOUR * 470_000
T = 1_700_000_000_000_000_000


def test_hours_and_latencies_are_those_of_the_events(tmp_path):
    level = writer.simple_level(100, start=START + HOUR - 200_000, step=1000)
    source = open_source(writer.write_queue(tmp_path / "data", level))
    (queue,) = source.queues()
    made = scan(source, queue.triples[0])
    assert made.hours["hour"].tolist() == [START, START + HOUR]
    assert made.hours["published"].tolist() == [50, 50]
    assert made.hours["delivered"].sum() == made.hours["settled"].sum() == made.waited.sum() == 100
    assert made.longest == (1000, 1000)
    assert made.counters.sum() == 0


def life_of(tmp_path, rows, count=3):
    level = writer.Level(writer.messages(range(1, count + 1), [T + 10 * k for k in range(count)]), writer.events(rows))
    source = open_source(writer.write_queue(tmp_path / "data", level, writer.Options()))
    ((triple,),) = [queue.triples for queue in source.queues()]
    return lives(read_triple(source, triple))


def test_each_kind_of_event_has_its_counter(tmp_path):
    life = life_of(tmp_path, [
        (T + 100, 1, layout.DELIVERED, 0), (T + 110, 1, layout.RETURNED, layout.CAUSE_NACK),
        (T + 120, 1, layout.DELIVERED, layout.REDELIVERED | layout.BEFORE_START), (T + 130, 1, layout.PURGED, 0),
        (T + 140, 2, layout.DEAD_LETTERED, layout.REASON_EXPIRED), (T + 150, 3, layout.DROPPED, layout.REASON_LIMIT)])
    said = dict(zip(layout.ORDER_COUNTERS, counters(life).tolist(), strict=True))
    assert {name: count for name, count in said.items() if count} == {
        "returned_nack": 1, "redelivered": 1, "redelivered_after_restart": 1, "purged": 1, "dead_lettered_expired": 1,
        "dropped_delivery_limit": 1}


def test_times_are_those_from_publish_to_delivery_and_from_there_to_the_end(tmp_path):
    life = life_of(tmp_path, [(T + 100, 1, layout.DELIVERED, 0), (T + 1_000, 1, layout.ACKED, 0),
                              (T + 510, 2, layout.DELIVERED, 0)])
    waited, worked, longest = latency(life)
    assert (waited.sum(), worked.sum(), longest) == (2, 1, (500, 900))

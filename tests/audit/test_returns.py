"""The stretches in which messages that came back lie ready."""

import writer
from test_waits import ONE, STEP, T, acked, back, meta, out

from brokerd.audit.files import FOREVER, open_source
from brokerd.audit.lifecycle import lives
from brokerd.audit.returns import waits
from brokerd.audit.segment import read_triple
from brokerd.store.format import DELIVERED, EVENT_REPLAYED, REDELIVERED, RESTARTED, STARTED


def stretches(root, steps, **settings):
    """(message, step of its begin, step of its end or None) of each stretch."""
    rows = [(T + STEP * k, seq or T + STEP * k, type_, *(more[:1] or (0,)), consumer)
            for k, (seq, type_, consumer, *more) in enumerate(steps, 1)]
    level = writer.Level(writer.messages(range(1, 5), range(T - 100, T - 96)), writer.events(rows),
                         metas=[meta("a")] * 4)
    source = open_source(str(writer.write_queue(root, level, writer.Options(settings=settings))))
    (queue,) = source.queues()
    data = read_triple(source, queue.triples[0])
    found = waits(data, lives(data))
    return [(seq, (start - T) // STEP, (stop - T) // STEP if stop < FOREVER else None)
            for seq, start, stop in zip(found.seq.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)]


def again(seq):
    return seq, DELIVERED, ONE, REDELIVERED


def test_a_message_waits_from_its_return_until_it_goes_out(tmp_path):
    assert stretches(tmp_path, [out(1), back(1), out(2), again(1), acked(1)]) == [(1, 2, 4)]


def test_a_start_gives_back_what_was_out(tmp_path):
    assert stretches(tmp_path, [out(1), (0, STARTED, 0, RESTARTED), again(1)]) == [(1, 2, 3)]


def test_a_replay_begins_a_stretch(tmp_path):
    steps = [out(1), acked(1), (1, EVENT_REPLAYED, 0), out(2), again(1)]
    assert stretches(tmp_path, steps) == [(1, 3, 5)]


def test_what_never_goes_out_waits_to_the_end(tmp_path):
    assert stretches(tmp_path, [out(1), back(1)]) == [(1, 2, None)]


def test_what_may_wait_for_its_next_try_is_left_out(tmp_path):
    retry = {"type": "all", "min_ms": 10, "max_ms": 10}
    assert stretches(tmp_path, [out(1), back(1), again(1)], retry=retry) == []

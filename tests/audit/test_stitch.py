"""Returned messages that those of many segments overtook are counted exactly, without reading all of these again."""

import numpy as np
import oracle
import pytest
import writer

from brokerd.audit import stitch
from brokerd.audit.files import open_source
from brokerd.audit.scan import DEFAULTS, scan
from brokerd.audit.verdicts import judge
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000


def prepared(tmp_path, rows, count=200, segment=10):
    level = writer.Level(writer.messages(range(1, count + 1), [T + k for k in range(count)]), writer.events(rows))
    source = open_source(writer.write_queue(tmp_path / "data", level, writer.Options(segment_messages=segment)))
    (queue,) = source.queues()
    return source, queue, [scan(source, triple) for triple in queue.triples]


def orderly(count=200):
    return [(T + 1000 * k, k, layout.DELIVERED, 0) for k in range(1, count + 1)]


def overtaking(source, queue, summaries):
    row = next(row for row in judge(source, queue, summaries).audits if row["audit"] == "overtaking")
    return row["found"], row["overtakings"]


def test_a_message_that_keeps_failing_is_overtaken_by_all_that_went_out_meanwhile(tmp_path, monkeypatch):
    rows = orderly()
    for k in range(1, 20):
        rows += [(T + 10_000 * k + 1, 3, layout.RETURNED, 1), (T + 10_000 * k + 2, 3, layout.DELIVERED, 1)]
    source, queue, summaries = prepared(tmp_path, rows)
    read = []
    read_again = stitch.read_again
    monkeypatch.setattr(stitch, "read_again", lambda *args: read.append(1) or read_again(*args))
    assert overtaking(source, queue, summaries) == (19, sum(10 * k - 3 for k in range(1, 20)))
    assert len(read) < 20


def test_overtaking_is_exact_where_there_is_no_order_at_all(tmp_path):
    rng = np.random.default_rng(3)
    rows, times = [], T + rng.permutation(np.arange(1, 1 + 200 * 5)) * 10
    for k, times_of in enumerate(np.sort(times.reshape(200, 5), axis=1).tolist(), 1):
        rows += [(t, k, type_, why) for t, type_, why in zip(times_of, (8, 3, 8, 3, 8), (0, 1, 1, 2, 1), strict=True)]
    naive = oracle.Level([(k, T + k - 1, 1, 1, k) for k in range(1, 201)], rows)
    assert overtaking(*prepared(tmp_path, rows)) == naive.overtaking()


@pytest.mark.parametrize("start", [None, 3])
def test_a_returned_message_waits_while_later_segments_go_out(tmp_path, start):
    rows = orderly()
    rows.append((T + 5_500, 5, layout.RETURNED, 1))
    if start:
        rows.append((T + 5_600, T, layout.STARTED, layout.RESTARTED))
    source, queue, summaries = prepared(tmp_path, rows)
    judged = judge(source, queue, summaries, DEFAULTS)
    row = next(row for row in judged.audits if row["audit"] == "returned_first")
    assert row["found"] == (5 if start else 1)
    edge = [(T + 10_500, 10, layout.RETURNED, 1), (T + 11_500, 10, layout.DELIVERED, 1)]
    source, queue, summaries = prepared(tmp_path, orderly() + edge)
    judged = judge(source, queue, summaries, DEFAULTS)
    row = next(row for row in judged.audits if row["audit"] == "returned_first")
    assert row["found"] == 1

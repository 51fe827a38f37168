"""Audits of a whole queue: each says only what it is asked for, and only of queues of which it can say something."""

import numpy as np
import writer

from brokerd.audit import whole
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.stitch import Findings

T = 1_780_000_000_000_000_000


def judged(root, **options):
    source, options = open_source(str(root)), Options(**options)
    (queue,) = source.queues()
    levels = {}
    for triple in queue.triples:
        levels.setdefault(triple.priority, []).append(scan(source, triple, options))
    return whole.judge(source, queue, levels, options, Findings()), queue, levels


def test_only_what_is_asked_for_is_judged(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(20))
    given, _, _ = judged(root, audits=frozenset({"numbers"}))
    assert list(given) == ["numbers"]
    assert judged(root, audits=frozenset({"fifo"}))[0] == {}


def test_only_queues_with_priorities_have_an_order_between_levels(tmp_path):
    given, queue, levels = judged(writer.write_queue(tmp_path / "one", writer.simple_level(20)))
    assert "channel_order" not in given
    assert not whole.applies("channel_order", queue, levels, Options())
    two = {level: writer.Level(writer.messages(np.arange(1 + level, 20, 2), T + np.arange(1 + level, 20, 2)),
                               writer.events([])) for level in (0, 1)}
    given, queue, levels = judged(writer.write_queue(tmp_path / "two", two))
    assert (given["channel_order"].found, given["channel_order"].checked) == (0, 19)
    assert whole.applies("channel_order", queue, levels, Options())
    assert whole.cut_of(queue) is None

"""Deliveries while a higher level waited, also where a queue is looked at in slices."""

import random

import oracle
import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.priority import priority
from brokerd.audit.scan import DEFAULTS, scan
from brokerd.audit.stitch import Findings
from brokerd.store import format as layout

T = 1_700_000_000_000_000_000


def history(seed):
    rnd = random.Random(seed)
    now, levels = T, {k: ([], [], [(T + 60_000, layout.RESTARTED, T)]) for k in (0, 1, 7)}
    for seq in range(1, 300):
        now += rnd.randrange(1, 300)
        levels[rnd.choice((0, 1, 7))][0].append((seq, now, 1, 1, seq))
        for level in (7, 1, 0):
            done = {e[1] for e in levels[level][1]}
            waiting = [m[0] for m in levels[level][0] if m[0] not in done]
            if waiting and rnd.random() < 0.5:
                levels[level][1].append((now + 1, waiting[0], layout.DELIVERED, 0))
                if rnd.random() < 0.5:
                    levels[level][1].append((now + 2, waiting[0], rnd.choice((layout.RETURNED, layout.ACKED)), 1))
                now += 3
    return levels


@pytest.mark.parametrize("slice_size", [50, 300, 1 << 20])
def test_all_inversions_are_found_whatever_the_slices(tmp_path, slice_size):
    levels = history(slice_size)
    made = {k: writer.Level(writer.messages([m[0] for m in ms], [m[1] for m in ms]), writer.events(
        [(ts, seq, type_, why) for ts, seq, type_, why in es] + [(ts, w, 9, why) for ts, why, w in starts]))
        for k, (ms, es, starts) in levels.items()}
    source = open_source(writer.write_queue(tmp_path / "data", made, writer.Options(segment_messages=20)))
    (queue,) = source.queues()
    summaries = {}
    for triple in queue.triples:
        summaries.setdefault(triple.priority, []).append(scan(source, triple))
    findings = Findings()
    checked = priority(source, summaries, DEFAULTS, findings, slice_size)
    assert checked == sum(e[2] == layout.DELIVERED for level in levels.values() for e in level[1])
    assert findings.found["priority"] == oracle.priority({k: oracle.Level(*v) for k, v in levels.items()}) > 0

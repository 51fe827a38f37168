"""Engine A against an oracle that looks at one message after the other: whatever happened, both find the same."""

import shutil

import numpy as np
import oracle
import pytest
import writer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options, scan
from brokerd.audit.verdicts import judge
from brokerd.store import format as layout

SPANS = (1, 7_000_000, 3_600_000_000_000)               # ns between things: microseconds to years in all
START = 1_600_000_000_000_000_000
KINDS = (layout.DELIVERED, layout.DELIVERED, layout.DELIVERED, layout.RETURNED, layout.RETURNED, layout.ACKED,
         layout.REJECTED, layout.DEAD_LETTERED, layout.EXPIRED, layout.DROPPED)


@st.composite
def histories(draw):
    """(levels: {priority: (messages, events, starts)}, more): mostly orderly, with what should not be in between."""
    step = draw(st.sampled_from(SPANS))
    levels = draw(st.sampled_from((1, 1, 2, 3)))
    wild = draw(st.booleans())
    now, seq = START, 0
    messages = {k: [] for k in range(levels)}
    events = {k: [] for k in range(levels)}
    starts = []
    publishes = {}
    begun = draw(st.sampled_from((0, 0, START + 20 * step)))
    for what in draw(st.lists(st.integers(0, 99), min_size=5, max_size=70)):
        now += step * (1 + what % 3)
        if what < 35 or not seq:
            level = what % levels
            seq += 1
            channel = (what % 3, 1 + what % 2)
            number = publishes.get(channel, 0) + 1
            publishes[channel] = number
            if what == 34 and channel[0]:
                number = max(number - draw(st.integers(0, 2)), 0)
            messages[level].append((seq, now, *channel, number))
        elif now <= begun:
            continue                    # A journal has no event from before it began.
        elif what < 97:
            level = draw(st.integers(0, levels - 1))
            if not messages[level]:
                continue
            recent = messages[level][-12:]
            one = recent[draw(st.integers(0, len(recent) - 1))][0] if wild else _next(messages, events, level, what)
            type_ = draw(st.sampled_from(KINDS)) if wild else _orderly(events, level, one, what)
            before = [e for e in events[level] if e[1] == one and e[2] == layout.DELIVERED]
            why = {layout.DELIVERED: _flags(before, starts), layout.RETURNED: 1 + what % 6,
                   layout.DEAD_LETTERED: 1 + what % 4, layout.DROPPED: 3 + what % 2}.get(type_, 0)
            events[level].append((now, one, type_, why))
        else:
            reason = (layout.RESTARTED, layout.POWER_LOST, layout.RESTARTED)[what - 97]
            starts.append((now, reason, max(now - 3 * step, begun)))
    return {k: (messages[k], events[k], starts) for k in messages}, {
        "segment": draw(st.sampled_from((3, 5, 1000))), "limit": draw(st.sampled_from((None, 1, 2))),
        "dead_letters": draw(st.booleans()), "begun": begun, "last": now,
        "step": step}


def _flags(before, starts):
    if not before:
        return 0
    later = [s for s in starts if s[0] > before[-1][0]]
    return layout.REDELIVERED | (layout.BEFORE_START if later else 0)


def _next(messages, events, level, what):
    done = {e[1] for e in events[level] if e[2] not in (layout.DELIVERED, layout.RETURNED)}
    left = [m[0] for m in messages[level] if m[0] not in done] or [messages[level][-1][0]]
    return left[min(what % 7 // 2, len(left) - 1)]


def _orderly(events, level, one, what):
    own = [e[2] for e in events[level] if e[1] == one]
    if not own or own[-1] != layout.DELIVERED:
        return layout.DELIVERED
    return (layout.RETURNED, layout.ACKED)[what % 2]


def write(folder, levels, more):
    shutil.rmtree(folder, ignore_errors=True)
    made = {}
    for priority, (messages, events, starts) in levels.items():
        rows = [(ts, seq, type_, why) for ts, seq, type_, why in events]
        rows += [(ts, whole, layout.STARTED, reason) for ts, reason, whole in starts]
        array = writer.messages([m[0] for m in messages], [m[1] for m in messages])
        for k, name in ((2, "connection"), (3, "channel"), (4, "publish_seq")):
            array[name] = [m[k] for m in messages]
        made[priority] = writer.Level(array, writer.events(rows), 20)
    options = writer.Options(segment_messages=more["segment"], begun=more["begun"], settings={
        "delivery_limit": more["limit"], "dead_letter_exchange": "dlx" if more["dead_letters"] else None})
    writer.write_queue(folder, {k: v for k, v in made.items() if len(v.messages) or k == 0}, options)


def audited(folder, options=None):
    options = options or Options()
    source = open_source(str(folder))
    (queue,) = source.queues()
    return judge(source, queue, [scan(source, triple, options) for triple in queue.triples], options)


def found(judged):
    return {row["audit"]: row["found"] for row in judged.audits}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "data"


A_SETTLEMENT_THAT_POWER_UNDID = (
    {0: ([(1, START + 1, 0, 1, 1)],
         [(START + 4, 1, layout.DELIVERED, 0), (START + 7, 1, layout.ACKED, 0), (START + 13, 1, layout.DELIVERED, 5)],
         [(START + 10, layout.POWER_LOST, START + 7)])},
    {"segment": 3, "limit": None, "dead_letters": False, "begun": 0, "last": START + 13, "step": 1})


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
@example(A_SETTLEMENT_THAT_POWER_UNDID)
def test_the_audits_find_what_the_definitions_say(folder, history):
    levels, more = history
    write(folder, levels, more)
    options = Options(unacked_after_s=10 * more["step"] / 1e9)
    judged = audited(folder, options)
    rows = {row["audit"]: row for row in judged.audits}
    naive = {k: oracle.Level(*v, begun=more["begun"], limit=more["limit"], dead_letters=more["dead_letters"])
             for k, v in levels.items() if v[0]}
    wanted = {name: sum(getattr(level, name)() for level in naive.values()) for name in (
        "publish_order", "fifo", "returned_first", "ack_without_delivery", "double_settle", "delivery_after_settle")}
    overtaking = [level.overtaking() for level in naive.values()]
    wanted["overtaking"] = sum(row[0] for row in overtaking)
    if more["limit"] is not None:
        wanted["delivery_limit"] = sum(level.delivery_limit() for level in naive.values())
    if len(naive) > 1:
        wanted["priority"] = oracle.priority(naive)
    got = {name: rows[name].get("by_rule", rows[name]["found"]) for name in wanted}
    assert got == wanted
    assert rows["overtaking"]["overtakings"] == sum(row[1] for row in overtaking)
    told = {name: sum(row["audit"] == name for row in judged.findings) for name in wanted}
    assert told == {name: rows[name]["found"] + rows[name].get("consequences", 0) for name in wanted}
    assert rows["holes"]["found"] == rows["damage"]["found"] == 0
    uncovered = sum(level.uncovered() for level in naive.values())
    for name in ("returned_first", "overtaking"):
        found = "effects of use" if name == "overtaking" else "violated"
        assert rows[name]["verdict"] == (found if wanted[name] else "undecidable" if uncovered else "held")


def test_a_clean_queue_holds_in_everything(folder):
    shutil.rmtree(folder, ignore_errors=True)
    writer.write_queue(folder, writer.simple_level(1000), writer.Options(segment_messages=100, kept=True))
    judged = audited(folder)
    assert {row["verdict"] for row in judged.audits if row["audit"] != "chain"} == {"held"}
    assert [row["verdict"] for row in judged.audits if row["audit"] == "chain"] == ["covers nothing"]
    assert judged.findings == []
    assert np.isclose(judged.queue["latency"]["enqueue_to_delivery"]["p50"], 1000, rtol=0.07)

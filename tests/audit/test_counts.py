"""What the broker of a dump counted is what its journals say."""

import json

import numpy as np
import plant
import pytest
import writer

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.store import format as layout
from brokerd.store.format import ACKED, DELIVERED, REDELIVERED, REJECTED, RETURNED

T = 1_780_000_000_000_000_000
ROWS = [(T + 10, 1, DELIVERED), (T + 11, 2, DELIVERED), (T + 12, 1, RETURNED, 4, 1, 1),
        (T + 13, 1, DELIVERED, REDELIVERED, 1, 1), (T + 14, 1, REJECTED, 0, 1, 1), (T + 15, 2, ACKED)]
TRUE = {"returned_channel_closed": 1, "redelivered": 1, "out_of_sequence": 1, "overtakings": 1, "rejected": 1}


def dump(root, manifest=TRUE, order=TRUE, *, first=1, log=()):
    """A dump of a queue of two messages; its counters say what is given, and 0 of all others."""
    rows = [(ts, seq + first - 1, *more) for ts, seq, *more in ROWS]
    level = writer.Level(writer.messages((first, first + 1), (T, T + 1)), writer.events(rows))
    writer.write_queue(root, level, writer.Options(log=list(log)))
    zeros = dict.fromkeys(layout.ORDER_COUNTERS, 0)
    if order is not None:
        counts = np.array(list((zeros | order).values()), "<u8").tobytes()
        (root / "vhost/queue/order").write_bytes(layout.order_header().ljust(64, b"\0")[:64] + counts)
    said = plant.manifest(str(root), {("/", "vhost/queue"): {"journal": True}}, T + 100)
    said["queues"][0] |= {"next_seq": first + 2, "counters": zeros | manifest if manifest is not None else {}}
    (root / "manifest.json").write_text(json.dumps(said))
    return root


def judged(root, **options):
    (one,) = audit(open_source(str(root)), Options(**options))
    row = next((row for row in one.audits if row["audit"] == "counters"), None)
    return row, [finding["detail"] for finding in one.findings if finding["audit"] == "counters"]


def test_counters_that_agree_are_held(tmp_path):
    row, told = judged(dump(tmp_path / "data"))
    assert (row["verdict"], row["found"], row["checked"], told) == ("held", 0, 40, [])
    row, _ = judged(dump(tmp_path / "none", None, None))
    assert (row["verdict"], row["checked"], row["reason"]) == ("held", 0, "nothing to judge")


@pytest.mark.parametrize("name", layout.ORDER_COUNTERS)
@pytest.mark.parametrize("by", [-1, 1])
def test_each_counter_that_differs_is_found(tmp_path, name, by):
    counts = TRUE | {name: TRUE.get(name, 0) + by}
    if counts[name] < 0:
        return
    row, told = judged(dump(tmp_path / "data", order=counts))
    assert (row["verdict"], row["found"]) == ("violated", 1)
    assert told == [f"{name}: {counts[name]} by the broker (order), {TRUE.get(name, 0)} by the journals"]
    row, told = judged(dump(tmp_path / "other", manifest=counts, order=None))
    assert (row["verdict"], row["found"], row["checked"]) == ("violated", 1, 20)
    assert "(manifest)" in told[0]


@pytest.mark.parametrize(("count", "verdict"), [(1, "undecidable"), (7, "undecidable"), (0, "violated")])
def test_where_segments_are_gone_the_broker_may_have_counted_more_but_not_less(tmp_path, count, verdict):
    removed = {"at": 5, "what": "removed", "level": 0, "segments": [1], "first_seq": 1, "last_seq": 8, "messages": 8,
               "octets": 1, "why": "age"}
    row, _ = judged(dump(tmp_path / "data", TRUE | {"redelivered": count}, None, first=9, log=[removed]))
    assert row["verdict"] == verdict


def standing(root, ready, unacked, *, life=(), settings=(), aside=(), name="q", begun=1):
    """A dump of a queue with an order journal: 1 is acked, 2 out, 3 returned and out again, 4 and 5 are ready, 6 ready
    again.  ``aside``: those of whom the acks say that they were set aside last."""
    rows = [(T + 10, 1, DELIVERED), (T + 11, 1, ACKED), (T + 12, 2, DELIVERED), (T + 13, 3, DELIVERED),
            (T + 14, 3, RETURNED, 1, 1, 1), (T + 15, 3, DELIVERED, REDELIVERED, 1, 1), (T + 16, 6, DELIVERED),
            (T + 17, 6, RETURNED, 1, 1, 1), *life, *((T + 50, seq, layout.SET_ASIDE, 0, 0, 1) for seq in aside)]
    level = writer.Level(writer.messages(range(1, 7), range(T, T + 6)), writer.events(rows))
    writer.write_queue(root, level, writer.Options(settings=dict(settings), begun=begun), queue=name)
    said = plant.manifest(str(root), {("/", "vhost/queue"): {"journal": True}}, T + 100)
    said["queues"][0] |= {"next_seq": 7, "ready": ready, "unacked": unacked}
    (root / "manifest.json").write_text(json.dumps(said))
    return judged(root)


@pytest.mark.parametrize(("ready", "unacked", "told"), [
    (3, 2, []), (4, 2, ["ready: 4 by the broker (manifest), 3 by the journals"]),
    (2, 2, ["ready: 2 by the broker (manifest), 3 by the journals"]),
    (3, 1, ["unacked: 1 by the broker (manifest), 2 by the journals"]),
    (2, 3, ["ready: 2 by the broker (manifest), 3 by the journals",
            "unacked: 3 by the broker (manifest), 2 by the journals"])])
def test_how_many_messages_were_ready_and_out_at_the_cut_is_compared(tmp_path, ready, unacked, told):
    row, said = standing(tmp_path / "data", ready, unacked)
    assert (row["verdict"], row["checked"], said) == ("violated" if told else "held", 2, told)


def test_a_start_gives_back_what_was_out(tmp_path):
    start = [(T + 60, T + 59, layout.STARTED, layout.RESTARTED)]
    assert standing(tmp_path / "data", 5, 0, life=start)[1] == []


@pytest.mark.parametrize(("aside", "settings", "least", "most", "out"), [
    ((), {}, 3, 3, 2), ((4, 6), {}, 1, 3, 2), ((2,), {}, 3, 4, 1),
    ((), {"dead_letter_exchange": "dlx"}, 2, 3, 2), ((5,), {"dead_letter_exchange": "dlx"}, 1, 3, 2)])
def test_a_message_that_may_be_aside_may_be_ready_or_not(tmp_path, aside, settings, least, most, out):
    """While its dead letter is stored; one that was delivered before need not say so in the acks."""
    for ready in range(6):
        row, _ = standing(tmp_path / str(ready), ready, out, settings=settings, aside=aside)
        assert (row["found"] == 0) == (least <= ready <= most), ready


def test_what_the_files_cannot_tell_of_the_messages_at_the_cut_is_not_compared(tmp_path):
    lost = [(T + 60, T + 59, layout.STARTED, layout.POWER_LOST)]
    row, told = standing(tmp_path / "power", 9, 9, life=lost)
    assert (row["verdict"], row["checked"], told) == ("undecidable", 0, [])
    row, told = standing(tmp_path / "late", 9, 9, begun=T + 3)
    assert (row["verdict"], row["checked"], told) == ("undecidable", 0, [])
    row, told = standing(tmp_path / "room", 9, 9, name="amq.delayed.e")     # Messages leave it without an entry.
    assert (row["checked"], told) == (0, [])
    root = tmp_path / "damage"
    standing(root, 9, 9)
    plant.flip(f"{root}/vhost/queue/{layout.segment_name(1)}", -20)
    row, told = judged(root)
    assert (row["verdict"], row["checked"], told) == ("undecidable", 0, [])


def test_a_data_directory_and_a_part_of_a_dump_are_not_judged(tmp_path):
    root = dump(tmp_path / "data", {}, {})
    assert judged(root)[0]["verdict"] == "violated"
    assert judged(root, from_ns=T, to_ns=T + 1)[0] is None
    (root / "manifest.json").unlink()
    assert judged(root)[0] is None

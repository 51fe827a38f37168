"""What is in a folder, in lines; what a real one looks like is told in test_brokerctl."""

from brokerd.cli import ctl_inspect, ctl_text

QUEUE = {"vhost": "/", "queue": "q", "folder": "v/q", "segments": 3, "messages": 1000, "ready": 10, "unacked": 5,
         "settled": 985, "first_seq": 1, "last_seq": 1000, "events": 2970, "journaled": True, "octets": 2_000_000,
         "last_ts": 1_700_000_000_000_000_000, "damage": []}


def document(*queues):
    totals = {key: sum(each[key] for each in queues) for key in ("segments", "messages", "events", "octets")}
    return {"path": "/data", "queues": list(queues), "totals": {"queues": len(queues)} | totals,
            "damage_total": sum(len(each["damage"]) for each in queues)}


def test_queues_stand_in_columns_below_their_sum():
    time = ctl_text.moment(QUEUE["last_ts"])[:19]
    assert ctl_inspect.text(document(QUEUE)).splitlines() == [
        "/data: 1 queue, 3 segments, 1,000 messages, 2,970 events, 2.0 MB", "",
        "  vhost  queue  segments  messages  ready  unacked  settled  first   last  events    size  newest",
        f"  /      q             3     1,000     10        5      985      1  1,000   2,970  2.0 MB  {time}", "",
        "  No damage."]


def test_an_empty_folder_and_an_empty_queue_are_told_too():
    assert ctl_inspect.text(document()).splitlines()[-1] == "  No damage."
    nothing = QUEUE | {"first_seq": 0, "last_seq": 0, "journaled": False, "last_ts": 0}
    row = ctl_inspect.text(document(nothing)).splitlines()[3]
    assert row.split()[-7:] == ["-", "-", "no", "journal", "2.0", "MB", "-"]


def test_damage_is_told_up_to_a_number_of_lines():
    damage = [{"file": f"v/q/msgs.{n}", "offset": n - 1, "seq": 0, "ts": 0, "detail": "bad\x1b"} for n in range(25)]
    lines = ctl_inspect.text(document(QUEUE | {"damage": damage})).splitlines()
    at = lines.index("  damage: 25")
    assert lines[at + 1:at + 4] == ["    queue q of vhost /:", r"    v/q/msgs.0: bad\x1b",
                                    r"    v/q/msgs.1 at 0: bad\x1b"]
    assert lines[-1] == "    ... and 5 more in v/q"
    assert len(lines) == at + 2 + ctl_inspect.DAMAGE_LINES + 1

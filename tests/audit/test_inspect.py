"""What is in a directory, in numbers."""

import json
import os
import struct

import pytest
import writer

from brokerd.audit import NoSuchQueueError
from brokerd.audit.files import open_source
from brokerd.audit.inspect import inspect
from brokerd.store import format as layout


def test_counts_and_bounds_are_told_for_each_queue(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(250), writer.Options(
        segment_messages=100, kept=True))
    writer.write_queue(root, writer.simple_level(20, settle=False), queue="other", folder="other")
    heard = []
    told = json.loads(json.dumps(inspect(open_source(root), progress=heard.append)))
    other, q = told["queues"]
    assert (q["messages"], q["settled"], q["ready"], q["unacked"], q["segments"], q["kept"]) == (250, 250, 0, 0, 3, 2)
    assert (q["first_seq"], q["last_seq"], q["events"], q["journaled"], q["damage"]) == (1, 250, 500, True, [])
    assert (other["queue"], other["unacked"], other["settled"]) == ("other", 20, 0)
    assert told["totals"]["messages"] == 270
    assert sum(heard) == told["totals"]["octets"]
    assert len(inspect(open_source(root), "oth*")["queues"]) == 1


def test_damage_is_told_with_its_place(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(50))
    with open(root + "/vhost/queue/msgs.0000000001", "r+b") as file:
        file.seek(64 + 70)
        file.write(b"\xff\xff")
    told = inspect(open_source(root))
    assert told["damage_total"] == 1
    assert told["queues"][0]["damage"][0]["offset"] == 64
    assert inspect(open_source(root), crc=False)["damage_total"] == 0


def test_the_brokers_counters_are_read(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(5))
    path = root + "/vhost/queue/order"
    assert inspect(open_source(root))["queues"][0]["counters"] is None
    with open(path, "wb") as file:
        file.write(layout.order_header() + struct.pack("<20Q", *range(20)))
    assert inspect(open_source(root))["queues"][0]["counters"]["overtakings"] == 9
    os.truncate(path, 70)
    assert inspect(open_source(root))["queues"][0]["counters"] is None


def test_a_pattern_that_no_queue_matches_is_refused(tmp_path):
    root = writer.write_queue(tmp_path / "data", writer.simple_level(5))
    assert len(inspect(open_source(root), "q*")["queues"]) == 1
    with pytest.raises(NoSuchQueueError, match="no queue matches 'zzz\\*'"):
        inspect(open_source(root), "zzz*")

"""Order journals of a real broker: asked for by argument and policy, kept over restarts and kill -9, archived."""

import contextlib
import io
import json
import os
import re
import signal
import time

import pika
import pytest
from tests.broker import SECONDS
from tests.server.clients import close_all, connect

from brokerd.audit.chain import read_log
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.cli import brokerctl
from brokerd.store import format as layout
from brokerd.store import reading, side_file
from brokerd.store.disk import Disk
from brokerd.store.format import folder_name

BODY = b"x" * 20_000
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def start(make_broker):
    """Start a broker with small segments."""
    yield lambda *flags: make_broker("--segment-octets", 1 << 20, *flags).start()
    close_all()


def pass_on(channel, count, queue="q"):
    """Publish messages and acknowledge them."""
    for _ in range(count):
        channel.basic_publish("", queue, BODY, PERSISTENT)
    channel.basic_qos(prefetch_count=100)
    for left, (method, _, _) in zip(range(count, 0, -1), channel.consume(queue), strict=False):
        channel.basic_ack(method.delivery_tag)
        if left == 1:
            break
    channel.cancel()


def opened(broker):
    channel = connect(broker).channel()
    channel.confirm_delivery()
    return channel


def folder(broker, name="q"):
    return broker.directory / folder_name("/") / folder_name(name)


def kept(path):
    """The files of settled segments.  Their hash chains come a little later."""
    path = path / "kept"
    return sorted(name for name in os.listdir(path) if not name.startswith("chain.")) if path.exists() else []


def lines(path, what):
    return [line for line in side_file.read(str(path / "order.jsonl"), Disk()) if line["what"] == what]


def until(found):
    """What a second's tick of the broker brings about."""
    deadline = time.monotonic() + SECONDS
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def reload(broker):
    begin = len(broker.lines)
    os.kill(broker.pid, signal.SIGHUP)
    broker.wait_for_log("reloaded", begin)


@pytest.mark.parametrize("kill", [True, False])
def test_settled_segments_are_kept_over_restarts(start, kill):
    broker = start()
    channel = opened(broker)
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
    pass_on(channel, 120)
    path = folder(broker)
    before = kept(path)
    assert len(before) == 6
    close_all()
    broker.restart(kill=kill)
    channel = opened(broker)
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
    pass_on(channel, 120)
    assert set(before) < set(kept(path))
    numbers = [line["number"] for line in until(lambda: lines(path, "consumer")[1:])]
    assert len({line["number"] for line in lines(path, "consumer")}) == 2
    assert all(numbers)
    assert len(lines(path, "settings")) == 2
    name = path / "kept" / layout.journal_name(1)
    octets = until(lambda: name.stat().st_size % 4096 and name.read_bytes())
    assert int.from_bytes(octets[32:36], "little") == (len(octets) - 64) // 32


def test_a_reload_of_policies_switches_journals_on_and_off(start):
    broker = start()
    channel = opened(broker)
    channel.queue_declare("q", durable=True)
    channel.queue_declare("t", durable=False)
    pass_on(channel, 3)
    path = folder(broker)
    assert not (path / "order.jsonl").exists()
    policies = path.parent / "policies.json"
    policies.write_text(json.dumps([{"name": "p", "pattern": "", "definition": {"order-journal": True}}]))
    reload(broker)
    assert until(lambda: lines(path, "settings"))[0]["policy"] == "p"
    pass_on(channel, 120)
    assert kept(path)
    policies.write_text("[]")
    reload(broker)
    assert until(lambda: lines(path, "settings")[1:])[0]["journal"] is False
    before = kept(path)
    pass_on(channel, 120)
    assert kept(path) == before
    assert "Traceback" not in broker.log_text()


def test_a_transient_queue_cannot_ask_for_one(start):
    broker = start()
    for how in ({"durable": False}, {"durable": True, "exclusive": True}):
        channel = opened(broker)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="x-order-journal") as refused:
            channel.queue_declare("q", arguments={"x-order-journal": True}, **how)
        assert refused.value.reply_code == 406
    channel = opened(broker)
    channel.queue_declare("quorum", durable=True, arguments={"x-order-journal": True, "x-queue-type": "quorum"})


def test_beyond_their_retention_segments_go_into_the_archive_and_a_deleted_queue_follows(start, tmp_path):
    archive = tmp_path / "archive"
    broker = start("--order-journal-archive", archive)
    channel = opened(broker)
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True, "x-order-journal-retention-bytes": 0})
    pass_on(channel, 120)
    target = archive / folder_name("/") / folder_name("q")
    until(lambda: len(kept(target)) == 6)
    until(lambda: lines(target, "removed"))
    assert kept(folder(broker)) == []
    (line,) = lines(folder(broker), "removed")
    assert (line["why"], line["first_seq"], line["last_seq"] + 1) == ("archived", 1, line["messages"] + 1)
    channel.queue_delete("q")
    gone = target.with_name(target.name + ".1")
    assert len(until(lambda: gone.exists() and kept(gone))) == 9
    assert not target.exists()


def test_low_on_disk_what_is_kept_goes_and_then_publishers_wait(start, tmp_path):
    file = tmp_path / "brokerd.toml"
    file.write_text("free_disk_min_octets = 0\n")
    broker = start("-c", file)
    channel = opened(broker)
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
    pass_on(channel, 120)
    path = folder(broker)
    octets = until(lambda: [name for name in kept(path) if (path / "kept" / name).stat().st_size % 4096])
    assert octets
    file.write_text(f"free_disk_min_octets = {1 << 50}\n")
    reload(broker)
    broker.wait_for_log("WARNING low on disk: .* publishers are blocked")
    told = "WARNING order journals: settled segments gone, by reason: space: ([0-9]+) segments"
    gone, begin = 0, 0
    while gone < 2:     # A line tells of those that have gone since the last one.
        line = broker.wait_for_log(told, begin)
        gone += int(re.search(told, line)[1])
        begin = broker.lines.index(line) + 1
    assert (gone, kept(path)) == (2, [])
    file.write_text("free_disk_min_octets = 0\n")
    reload(broker)


def chain_of(path, number):
    octets = (path / layout.chain_name(number)).read_bytes()
    return reading.read_chain(octets, number)


def test_a_chain_covers_the_journal_over_kill_and_dump_and_its_heads_are_told_elsewhere(start, tmp_path):
    log, out = tmp_path / "heads.jsonl", tmp_path / "dump"
    broker = start("--order-journal-chain-log", log)
    channel = opened(broker)
    channel.queue_declare("q", durable=True, arguments={"x-order-journal": True})
    path = folder(broker)

    def pass_on_small(count):
        for _ in range(count):
            channel.basic_publish("", "q", b"x", PERSISTENT)
        for _ in range(count):
            channel.basic_ack(channel.basic_get("q")[0].delivery_tag)

    pass_on_small(1100)         # 2,200 events: one block is full
    (name,) = until(lambda: list(path.glob("chain.*")))
    number = int(name.name[6:])
    until(lambda: (chain := chain_of(path, number)) and chain.links)     # None: its header is not written yet
    close_all()
    broker.restart(kill=True)
    channel = opened(broker)
    pass_on_small(1100)
    until(lambda: len(chain_of(path, number).links) == 2)
    pass_on(channel, 120)
    until(lambda: (path / "kept" / layout.chain_name(number)).exists()
          and chain_of(path / "kept", number).links[-1].of == layout.OF_ENTRIES)
    with contextlib.redirect_stdout(io.StringIO()):
        assert brokerctl.run(["-D", str(broker.directory), "queue", "dump", str(out)]) == 0
    (entry,) = json.loads((out / "manifest.json").read_text())["queues"]
    heads = {os.path.basename(each["path"]): (each["blocks"], each["head"]) for each in entry["chains"]}
    links = chain_of(path / "kept", number).links
    assert heads[layout.chain_name(number)] == (len(links), links[-1].digest.hex())
    until(lambda: any(head.head == links[-1].digest.hex() for head in read_log(log)))
    for root in (out, broker.directory):
        (one,) = audit(open_source(str(root)), Options(audits=frozenset(["chain"]), chain_log=read_log(log)))
        assert (one.audits[0]["verdict"], one.findings) == ("held", [])
        assert one.audits[0]["checked"] > 4400

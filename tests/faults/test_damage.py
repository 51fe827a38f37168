"""Files torn, flipped, emptied, swapped and foreign: opened with what is whole, or refused by name; never silently.

One data directory is made, ended in each of three ways, and damaged in one place at a time.  Then it is opened and
emptied by the real node.  A message that is missing, or comes though it was settled, must be told in the log with
its file; a wrong one, an error without a file's name and anything else that is raised is a fault.
"""

import logging
import os
import shutil
import struct
from pathlib import Path

import pytest
from tests import broker
from tests.faults.client import Client as RealClient
from tests.faults.ledger import body_of, read_body
from tests.faults.power import Machine
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane import harness
from tests.plane.harness import Deliver

from brokerd.errors import StoreError
from brokerd.store import format as layout
from brokerd.store.data_dir import boot_id
from brokerd.store.disk import Disk
from brokerd.wire import methods

MESSAGES = 60
SETTLED = {1, 2, 5, 9, 30, 31, 59}      # by number, from 1
ENDS = ("clean", "crashed", "power lost")
GET_OK = struct.pack(">HH", 60, 71)
KEYS = ("one", "two", "three")


def make(directory, end, boot="boot-1"):
    """A data directory with 60 messages, seven of them settled, in a queue bound by three keys."""
    machine = Machine(str(directory), boot, Disk())
    client = machine.client()
    client.tell(methods.ChannelOpen().frame(1))
    client.tell(methods.ExchangeDeclare(exchange="x", type="direct", durable=True).frame(1))
    client.tell(methods.QueueDeclare(queue="q", durable=True).frame(1))
    for key in KEYS:
        client.tell(methods.QueueBind(queue="q", exchange="x", routing_key=key).frame(1))
    for n in range(1, MESSAGES + 1):
        client.tell(harness.publish(1, body_of(1, n, (40, 300, 5000)[n % 3]), b"q", persistent=True))
    machine.sync()
    machine.node.vhosts["/"].policies.changed().do()  # A file without policies.
    client.tell(methods.BasicConsume(queue="q").frame(1))
    for n in sorted(SETTLED):
        client.tell(harness.ack(1, n))
    client.tell(harness.nack(1, 3, requeue=True))
    machine.sync()
    if end == "clean":
        machine.stop()
    else:
        machine.vanish()
    return machine


class Opened:
    """What opening and emptying a directory came to: ``refused`` (the error's text) or ``came``, and ``log``."""

    def __init__(self, directory, boot):
        self.log, self.refused, self.came, self.keys = [], None, [], set()
        handler = logging.Handler()
        handler.emit = lambda record: self.log.append(record.getMessage())
        logger = logging.getLogger("brokerd")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        try:
            self.open(str(directory), boot)
        except (StoreError, OSError) as error:
            self.refused = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    def open(self, directory, boot):
        machine = Machine(directory, boot, Disk())
        try:
            queue = machine.node.vhosts["/"].queues.get("q")
            if queue is not None:
                self.keys = {binding.routing_key for binding in queue.bindings}
                self.drain(machine)
                assert queue.ready == 0, f"{queue.ready} messages are told that do not come"
        finally:
            machine.vanish()
            machine.bury()

    def drain(self, machine):
        client = machine.client()
        client.tell(methods.ChannelOpen().frame(1))
        client.tell(methods.BasicConsume(queue="q", no_ack=True).frame(1))
        machine.node.core.turn()
        delivery = None
        for kind, _, payload in client.frames():
            if kind == 1 and payload[:4] == struct.pack(">HH", 60, 60):
                delivery = Deliver(1, payload)
            elif kind == 2:
                delivery.size = int.from_bytes(payload[4:12])
            elif kind == 3:
                delivery.body += payload
                if len(delivery.body) == delivery.size:
                    stream, n = read_body(delivery.body)
                    assert stream == 1
                    self.came.append((n, delivery.redelivered))


def judge(opened, path, end):
    """Fails unless what came out is right, or what is wrong was told with the file's name."""
    told = [line for line in opened.log if os.path.basename(path) in line]
    assert not any("\n" in line or "Traceback" in line for line in opened.log)
    if opened.refused is not None:
        assert "\n" not in opened.refused
        assert os.path.basename(path) in opened.refused, opened.refused
        return
    numbers = [n for n, _ in opened.came]
    assert numbers == sorted(set(numbers)), "out of order, or twice"
    missing = set(range(1, MESSAGES + 1)) - SETTLED - set(numbers)
    again = SETTLED & set(numbers)
    assert told or not missing, f"lost without a word: {missing}; log: {opened.log}"
    assert told or not again or end == "power lost", f"come again without a word: {again}; log: {opened.log}"
    assert all(redelivered for n, redelivered in opened.came if n in again), "settled ones come again unmarked"
    assert opened.keys == set(KEYS) or told, f"bindings lost without a word: {opened.keys}"


@pytest.fixture(scope="module", params=ENDS)
def whole(request, tmp_path_factory):
    """(directory, end): left as it is; tests copy it."""
    directory = tmp_path_factory.mktemp("whole") / "data"
    machine = make(directory, request.param)
    yield directory, request.param
    if request.param != "clean":
        machine.bury()


def find(directory, name):
    """The path of a file by its name; segments are counted from the first, acks by their segment."""
    [path] = [path for path in Path(directory).rglob(name) if "transient" not in str(path)]
    return path


def attempt(whole, tmp_path, name, damage):
    """Damage a copy by ``damage(path)``, open it, judge it."""
    directory, end = whole
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    path = find(copy, name)
    damage(path)
    opened = Opened(copy, "boot-2" if end == "power lost" else "boot-1")
    try:
        judge(opened, str(path), end)
    finally:
        shutil.rmtree(copy)
    return opened


def flip(position, mask=0x10):
    def damage(path):
        with open(path, "r+b") as file:
            file.seek(position)
            octet = file.read(1)
            assert octet, position
            file.seek(position)
            file.write(bytes((octet[0] ^ mask,)))
    return damage


def truncate(octets):
    return lambda path: os.truncate(path, octets)


def overwrite(octets, position=0):
    def damage(path):
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(octets)
    return damage


def become(octets):
    return lambda path: path.write_bytes(octets)


def become_directory(path):
    path.unlink()
    path.mkdir()


def later_version(covered):
    """A version that is not yet, with a header that is right in all else."""
    def damage(path):
        octets = bytearray(path.read_bytes())
        octets[4:8] = (9).to_bytes(4, "little")
        octets[covered:covered + 4] = layout.crc32c(bytes(octets[:covered])).to_bytes(4, "little")
        path.write_bytes(octets)
    return damage


SEGMENTS = ("msgs.0000000001", "msgs.0000000003", "msgs.0000000004")     # first, one in between, last
ACKS = ("acks.0000000001", "acks.0000000004")
OTHERS = ("definitions.amqp", ".vhost", "vhosts.json", "users.json", "permissions.json", "policies.json",
          "connection_numbers", "identity", "schema_version", "running", ".queue")
FIRST = layout.HEADER_OCTETS
FOREIGN = (b"", b"\0", b"hello", bytes(64), bytes(100_000), b"\xff" * 5000, b"BSEG" * 100, b"#!/bin/sh\necho\n" * 400)


def test_there_is_what_the_damages_need(whole, tmp_path):
    directory, end = whole
    names = {path.name for path in directory.rglob("*")}
    assert names >= {*SEGMENTS, *ACKS, *OTHERS} - ({"running"} if end == "clean" else set())
    shutil.copytree(directory, tmp_path / "copy")
    opened = Opened(tmp_path / "copy", "boot-2" if end == "power lost" else "boot-1")
    assert [n for n, _ in opened.came] == sorted(set(range(1, MESSAGES + 1)) - SETTLED)
    assert opened.keys == set(KEYS)


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_bit_flipped_in_a_segment_is_found_and_told(whole, tmp_path, name):
    header = {at for _, _, at in layout.SEGMENT_FIELDS}
    record = {FIRST + at for _, _, at in layout.RECORD_FIELDS}
    names_and_body = {FIRST + 64, FIRST + 66, FIRST + 70, FIRST + 78, FIRST + 90}
    for position in sorted(header | record | names_and_body | {5000, 9001, 12345}):
        attempt(whole, tmp_path, name, flip(position))


@pytest.mark.parametrize("name", ACKS)
def test_a_bit_flipped_in_acks_is_found_and_told(whole, tmp_path, name):
    header = {at for _, _, at in layout.ACKS_FIELDS}
    entries = {64 + entry * 8 + at for entry in (0, 1, 2, 4, 5) for _, _, at in layout.ENTRY_FIELDS}
    for position in sorted(header | entries):
        attempt(whole, tmp_path, name, flip(position))


@pytest.mark.parametrize("name", [*SEGMENTS, *ACKS])
def test_a_file_cut_short_costs_only_what_is_told(whole, tmp_path, name):
    size = find(whole[0], name).stat().st_size
    for octets in sorted({0, 1, 8, 40, 63, 64, 65, 72, 127, 128, 129, 200, 4095, 4096, 5000, 8192, 12288, size - 1}):
        if octets < size:
            attempt(whole, tmp_path, name, truncate(octets))


@pytest.mark.parametrize("name", [*SEGMENTS, *ACKS, "definitions.amqp"])
def test_zeros_in_place_of_a_page_cost_only_what_is_told(whole, tmp_path, name):
    size = find(whole[0], name).stat().st_size
    for position in range(0, min(size, 32768), 4096):
        attempt(whole, tmp_path, name, overwrite(bytes(min(4096, size - position)), position))
        attempt(whole, tmp_path, name, overwrite(bytes(min(512, size - position)), position))


@pytest.mark.parametrize("name", [*SEGMENTS, *ACKS, *OTHERS])
def test_a_foreign_content_is_refused_or_put_aside(whole, tmp_path, name):
    if name == "running" and whole[1] == "clean":
        pytest.skip("a clean end leaves none")
    for content in FOREIGN:
        attempt(whole, tmp_path, name, become(content))


@pytest.mark.parametrize("name", [*SEGMENTS, *ACKS, *OTHERS])
def test_a_directory_in_place_of_a_file_is_refused_by_name(whole, tmp_path, name):
    if name == "running" and whole[1] == "clean":
        pytest.skip("a clean end leaves none")
    attempt(whole, tmp_path, name, become_directory)


@pytest.mark.parametrize(("name", "covered"), [(SEGMENTS[0], layout.SEGMENT_CRC_END),
                                               (SEGMENTS[-1], layout.SEGMENT_CRC_END),
                                               (ACKS[0], layout.ACKS_CRC_END)])
def test_a_file_of_a_later_version_is_refused_by_name_and_version(whole, tmp_path, name, covered):
    opened = attempt(whole, tmp_path, name, later_version(covered))
    assert "has version 9 at offset 4" in opened.refused


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_under_the_name_of_another_is_told(whole, tmp_path, name):
    attempt(whole, tmp_path, name, lambda path: shutil.copy(path.with_name("msgs.0000000002"), path))


@pytest.mark.parametrize("name", ["msgs.0000000001", "acks.0000000001"])
def test_strange_names_beside_the_segments_are_left_alone(whole, tmp_path, name):
    def damage(path):
        for strange in ("msgs.1", "msgs.abc", "acks.-000000001", "msgs.00000000000000000001x", "core", "x" * 200):
            path.with_name(strange).write_bytes(b"not ours")
        path.with_name("msgs.dir").mkdir()
    opened = attempt(whole, tmp_path, name, damage)
    assert opened.refused is None


def test_no_flipped_bit_in_the_definitions_is_silent(whole, tmp_path):
    path = find(whole[0], "definitions.amqp")
    used = len(path.read_bytes().rstrip(b"\0"))
    for position in range(0, used, 3):
        attempt(whole, tmp_path, "definitions.amqp", flip(position, 1 << position % 8))


def test_definitions_cut_anywhere_are_refused_or_told(whole, tmp_path):
    path = find(whole[0], "definitions.amqp")
    used = len(path.read_bytes().rstrip(b"\0"))
    for octets in range(0, used + 8, 7):
        directory, end = whole
        copy = tmp_path / "copy"
        shutil.copytree(directory, copy)
        os.truncate(find(copy, "definitions.amqp"), octets)
        opened = Opened(copy, "boot-2" if end == "power lost" else "boot-1")
        lost = opened.refused is None and opened.keys != set(KEYS)
        # Cut exactly between two entries nothing shows that there was more: only then is it silent.
        assert opened.refused or opened.log or not lost or self_contained(path, octets)
        shutil.rmtree(copy)


def self_contained(path, octets):
    content, at = path.read_bytes(), 16
    while at < octets:
        at += 12 + int.from_bytes(content[at + 3:at + 7])
    return at == octets


# --- the same with a real process, for a selection

REAL = (
    ("msgs.0000000001", flip(FIRST + 90)), ("msgs.0000000001", flip(20)), ("msgs.0000000004", truncate(5000)),
    ("msgs.0000000003", overwrite(bytes(4096), 4096)), ("msgs.0000000001", later_version(layout.SEGMENT_CRC_END)),
    ("acks.0000000001", become(b"")), ("acks.0000000001", flip(70)), ("acks.0000000001", become_directory),
    ("definitions.amqp", flip(40)), ("definitions.amqp", become(b"hello")), ("definitions.amqp", become_directory),
    ("users.json", become(b"{]")), ("vhosts.json", become(b"[{\"name\": 5}]")), ("permissions.json", become(b"\xff")),
    ("connection_numbers", become(b"17 00000000\n")), ("schema_version", become(b"2\n")),
    ("running", become(b"\xff\0nonsense")),
)


@pytest.mark.parametrize("number", range(len(REAL)), ids=lambda number: f"{number}-{REAL[number][0]}")
def test_a_real_broker_starts_with_what_is_whole_or_ends_with_one_clear_line(tmp_path, number):
    name, damage = REAL[number]
    machine = make(tmp_path / "data", "crashed", boot_id())
    machine.bury()
    path = find(tmp_path / "data", name)
    damage(path)
    process = broker.Broker(tmp_path / "data", env={"BROKERD_SEGMENT_OCTETS": str(1 << 20),
                                                    "BROKERD_FREE_DISK_MIN_OCTETS": "0"})
    try:
        process.start()
    except AssertionError:
        process.check_log()
        ending = process.lines[-1]
        assert ending.startswith("brokerd: "), ending
        assert name in ending, ending
        return
    opened = Opened.__new__(Opened)
    opened.refused, opened.keys = None, set(KEYS)
    try:
        with RealClient(process.port) as client:
            passive = methods.QueueDeclare(queue="q", passive=True)
            count = client.ask(passive, methods.QueueDeclareOk).message_count
            client.ask(methods.BasicConsume(queue="q", no_ack=True), methods.BasicConsumeOk)
            client.ask(methods.BasicQos(), methods.BasicQosOk)
            client.ask(passive, methods.QueueDeclareOk)
            assert len(client.contents) <= count + 1
            opened.came = [(read_body(content.body)[1], content.redelivered) for content in client.contents]
            assert client.ask(passive, methods.QueueDeclareOk).message_count == 0
        process.stop()
    finally:
        process.kill()
    opened.log = process.log_text().splitlines()
    judge(opened, str(path), "power lost" if name == "running" else "crashed")


def test_a_file_that_may_not_be_read_is_refused_by_name(whole, tmp_path, monkeypatch):
    real = Disk.open
    for name in (*SEGMENTS, *ACKS, "definitions.amqp", "users.json"):
        def refuse(disk, path, flags=os.O_RDONLY, mode=0o640, name=name):
            if os.path.basename(path) == name:      # As for anybody but root.
                raise PermissionError(13, "Permission denied", path)
            return real(disk, path, flags, mode)

        monkeypatch.setattr(Disk, "open", refuse)
        opened = attempt(whole, tmp_path, name, lambda path: None)
        assert "Permission denied" in opened.refused

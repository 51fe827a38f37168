"""The summary that USR1 asks for: what it says, and that counting takes turns with other work."""

import logging
import re
import signal
from types import SimpleNamespace

import pika
import pytest
from tests.server.clients import close_all, connect

from brokerd import pieces as in_pieces
from brokerd.server import summary
from brokerd.server.lateness import Lateness


@pytest.fixture
def start(make_broker):
    """Start a broker with these flags; its clients go before it does."""
    yield lambda *flags: make_broker(*flags).start()
    close_all()


def summarize(broker):
    """Send USR1.  Returns the lines behind ``state:``, when the one with the queues is there."""
    begin = len(broker.lines)
    broker.process.send_signal(signal.SIGUSR1)
    broker.wait_for_log(r"INFO    state: \d+ vhosts?, ", begin)
    return [line.split(" INFO    state: ")[1] for line in broker.lines[begin:] if " state: " in line]


def test_the_state_is_in_the_log(start):
    broker = start()
    connection = connect(broker)
    channel, other = connection.channel(), connection.channel()
    for number in range(7):
        channel.queue_declare(f"q{number}")
        for _ in range(number):
            channel.basic_publish("", f"q{number}", b"body")
    for _ in range(2):
        assert channel.basic_get("q6")[0] is not None
    other.basic_consume("q0", lambda *_: None)
    lines = summarize(broker)
    assert re.fullmatch(rf"brokerd \S+, process {broker.pid}, up \d+ s; the loop is late by \d+ ms, at most by \d+ ms "
                        "since the last summary", lines[0])
    assert re.fullmatch(r"memory [1-9]\d* octets of at most [1-9]\d*; disk [1-9]\d* octets free; [1-9]\d* of [1-9]\d* "
                        "descriptors; no alarm", lines[1])
    descriptors = int(re.search(r"; (\d+) of", lines[1]).group(1))
    assert abs(descriptors - len(broker.open_files())) <= 2  # One is open while they are counted.
    assert re.fullmatch(r"\d connections? \(0 wait for the end of an alarm\), 2 channels", lines[2])
    assert lines[3] == "1 vhost, 7 queues: 19 messages ready, 2 unacked, 0 aside; 1 consumer"
    broker.wait_for_log(r"state: most messages: queue 'q6' in vhost '/': 4 ready, 2 unacked; queue 'q5' in vhost '/': "
                        r"5 ready, 0 unacked; (queue 'q\d' in vhost '/': \d ready, 0 unacked(; )?){3}$")


def test_the_summary_comes_though_the_log_is_silent(start, tmp_path):
    config = tmp_path / "brokerd.toml"
    config.write_text("")
    broker = start("-c", config)
    config.write_text("log_level = 'error'\nconnection_max = 1")
    broker.process.send_signal(signal.SIGHUP)
    connections = [connect(broker)]
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        while True:  # The reload is silent, too: its other option tells that it is done.
            connections.append(connect(broker))
    begin = len(broker.lines)
    assert summarize(broker)[3].startswith("1 vhost, 0 queues: 0 messages ready")
    assert all(" state: " in line for line in broker.lines[begin:])


def test_no_signal_for_users_kills_the_broker(start):
    broker = start()
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1):
        broker.process.send_signal(number)
    connect(broker).channel().queue_declare("q")
    assert summarize(broker)


def test_an_alarm_is_told(start):
    broker = start("--free-disk-min-octets", 1 << 50)
    broker.wait_for_log("low on disk")
    assert summarize(broker)[1].endswith("; low on disk")


def test_counting_takes_turns_with_other_work(monkeypatch, caplog):
    """Each look at the clock is a tenth of a piece: so many queues are looked at before others have their turn."""
    queues = [Queue(number) for number in range(1000)]
    now = 0

    def clock():
        nonlocal now
        now += in_pieces.PIECE_NS // 10
        return now

    monkeypatch.setattr(in_pieces, "monotonic_ns", clock)
    server, step = stand_in(queues)
    with caplog.at_level(logging.DEBUG):
        pieces = 0
        while not step():
            pieces += 1
            assert server.summing_up
            looked_at = sum(queue.looked_at for queue in queues)
            assert looked_at <= 10 * pieces
    assert pieces >= 100
    assert not server.summing_up
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "state: 1 vhost, 1000 queues: 499500 messages ready, 0 unacked" in text
    assert "state: most messages: 999: 999 ready, 0 unacked; 998: 998 ready" in text
    assert text.count("\n") == 4


def test_a_summary_that_fails_does_not_keep_the_next_one_away():
    server, step = stand_in([None])
    with pytest.raises(AttributeError):
        while not step():
            pass
    assert not server.summing_up


class Queue:
    unacked = aside = consumer_count = looked_at = 0

    def __init__(self, number):
        self.number = number

    @property
    def ready(self):
        self.looked_at = 1
        return self.number

    def __str__(self):
        return str(self.number)


def stand_in(queues):
    """A server with these queues, whose summary has begun, and what does the next piece of it."""
    errands = []
    node = SimpleNamespace(
        alarms=SimpleNamespace(memory_limit=lambda _: 5), settings=None, alarm_reason="", blocked=(), connections={},
        disk=SimpleNamespace(free_octets=lambda _: 7), data=SimpleNamespace(path=""),
        descriptors=SimpleNamespace(limit=9),
        vhosts={"/": SimpleNamespace(queues=dict(enumerate(queues)))}, core=SimpleNamespace(add_errand=errands.append),
    )
    server = SimpleNamespace(node=node, lateness=Lateness(), summing_up=False)
    summary.begin(server)
    return server, errands[0]

"""The broker as a process: how it starts, what signals do, and how it ends.

What else the command answers, and what clients do with a running one, is told in the other files of this folder.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pika
import pytest
from tests.broker import ROOT, SECONDS, Broker, environment, run
from tests.conversations import peer as conversation

from brokerd import __version__
from brokerd.clock import Clock
from brokerd.server.amqp import is_loopback
from brokerd.wire import methods
from brokerd.wire.frames import FRAME_METHOD, PROTOCOL_HEADER, FrameScanner


@pytest.fixture(autouse=True)
def _start(monkeypatch):
    """Each broker is a new Python, as for users, and each start that fails."""
    monkeypatch.setattr(Broker, "may_fork", False)


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"


class Peer:
    """A client that does only what it is told to, so that it can also keep silent."""

    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port), SECONDS)
        self.scanner = FrameScanner()
        self.waiting = []
        self.socket.sendall(PROTOCOL_HEADER)
        assert self.read().NAME == "connection.start"
        self.send(methods.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest", locale="en_US"))
        assert self.read().NAME == "connection.tune"
        self.send(methods.ConnectionTuneOk(channel_max=10, frame_max=131072, heartbeat=0),
                  methods.ConnectionOpen(virtual_host="/"))
        self.answer = self.read()       # connection.open-ok, or a refusal

    def send(self, *sent):
        self.socket.sendall(b"".join(method.frame(0) for method in sent))

    def read(self):
        """The next method."""
        while not self.waiting:
            octets = self.socket.recv(1 << 16)
            assert octets, "the broker closed the socket"
            self.waiting += [frame for frame in self.scanner.feed(octets) if frame.kind == FRAME_METHOD]
        return methods.decode(self.waiting.pop(0).payload)

    def read_end(self):
        """Until the socket is closed or cut by the other side."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        self.close()

    def close(self):
        self.socket.close()


@pytest.fixture
def connect():
    """Peers, closed at the end."""
    made = []

    def make(broker, answer="connection.open-ok"):
        peer = Peer(broker.port)
        made.append(peer)
        said = peer.answer.NAME
        assert said == answer
        return peer

    yield make
    for peer in made:
        peer.close()


def blocking(broker):
    return pika.BlockingConnection(pika.ConnectionParameters(host="127.0.0.1", port=broker.port))


# --- start

def test_a_start_says_version_process_directory_and_address(broker):
    lines = broker.log_text().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(
        rf"{TIME} INFO    brokerd {re.escape(__version__)}, process {broker.pid}, data in {broker.directory}", lines[0])
    assert re.fullmatch(rf"{TIME} INFO    listening on 127\.0\.0\.1:{broker.port} \(AMQP\)", lines[1])


def test_the_directory_is_marked_while_the_broker_runs(broker):
    assert (broker.directory / "running").exists()
    broker.stop()
    assert not (broker.directory / "running").exists()


def test_without_sync_it_is_said_loudly_and_otherwise_not_a_word(make_broker, broker):
    loose = make_broker("--no-sync").start()
    assert " WARNING --no-sync: messages are confirmed BEFORE they are on disk" in loose.log_text()
    assert " WARNING " not in broker.log_text()


def test_a_port_in_use_ends_the_start_with_one_line_and_a_clean_directory(broker, tmp_path):
    status, out, told = run("-D", tmp_path / "other", "-p", broker.port)
    assert (status, out) == (1, "")
    assert told == (
        f"brokerd: cannot listen on 127.0.0.1:{broker.port}: the port is in use by another process\n")
    assert not (tmp_path / "other" / "running").exists()


@pytest.mark.parametrize(("flags", "told"), [
    (["-b", "192.0.2.1"], r"cannot listen on 192\.0\.2\.1:0: .*[Cc]an(not|'t) assign requested address.*"),
    (["-b", "::1%none"], r"cannot listen on ::1%none:0: .+"),
    (["--log-file", "/proc/none/log"], r"/proc/none/log: No such file or directory"),
    (["--pid-file", "/proc/none/pid"], r"/proc/none/pid: No such file or directory"),
])
def test_what_stops_a_start_is_told_in_one_line(tmp_path, flags, told):
    status, _, text = run("-D", tmp_path / "data", "-p", 0, *flags)
    assert (status, "Traceback" in text) == (1, False)
    assert re.fullmatch(rf"brokerd: {told}", text.splitlines()[-1])


def test_a_directory_in_use_is_told_with_its_holder(broker):
    before = broker.log_text()
    status, _, told = run("-D", broker.directory, "-p", 0)
    assert (status, told) == (1, f"brokerd: data directory {broker.directory} is in use by pid {broker.pid} on "
                                 f"{socket.gethostname()}\n")
    assert broker.log_text() == before
    blocking(broker).close()


def test_a_damaged_file_stops_the_start_with_its_name_and_no_clean_end_is_claimed(make_broker):
    broker = make_broker().start()
    broker.stop()
    (broker.directory / "vhosts.json").write_text('[{"name": "/"}, {"name": 5}]')
    status, _, told = run("-D", broker.directory, "-p", 0)
    assert (status, told) == (1, f"brokerd: {broker.directory}/vhosts.json: entry 2: name is not a text of its own\n")


def test_it_listens_on_the_address_it_is_told(make_broker):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    broker = make_broker("-b", "::1").start()
    assert f"listening on [::1]:{broker.port} (AMQP)" in broker.log_text()
    Peer(broker.port, "::1").close()
    broker.wait_for_log(r"\[::1\]:\d+ guest /: lost")


# --- stop

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_the_broker_and_clients_are_told(broker, connect, number):
    peer = connect(broker)
    os.kill(broker.pid, number)
    close = peer.read()
    assert (close.reply_code, close.reply_text) == (
        320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
    peer.send(methods.ConnectionCloseOk())
    peer.read_end()
    assert broker.wait() == 0
    said = [line.split(None, 3)[3] for line in broker.log_text().splitlines()]
    assert said.index(f"{number.name}: stopping") < said.index("stopped") == len(said) - 1


def test_a_client_that_does_not_answer_is_waited_for_only_so_long(make_broker, connect):
    broker = make_broker("--stop-timeout-seconds", 0).start()
    peer = connect(broker)
    broker.stop()
    peer.read_end()


def test_nobody_is_let_in_while_clients_are_waited_for(broker, connect):
    peer = connect(broker)
    os.kill(broker.pid, signal.SIGTERM)
    assert peer.read().NAME == "connection.close"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", broker.port), SECONDS)
    peer.send(methods.ConnectionCloseOk())
    assert broker.wait() == 0


def test_a_client_that_has_answered_is_not_waited_for_though_its_socket_stays_open(make_broker, connect):
    broker = make_broker("--stop-timeout-seconds", "3600")
    broker.start()
    peer = connect(broker)
    os.kill(broker.pid, signal.SIGTERM)  # Within the first second of the broker's life.
    assert peer.read().NAME == "connection.close"
    peer.send(methods.ConnectionCloseOk())
    assert broker.wait() == 0


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_second_signal_stops_at_once_and_the_next_start_recovers(broker, connect, second):
    peer = connect(broker)
    os.kill(broker.pid, signal.SIGINT)
    assert peer.read().NAME == "connection.close"      # To which there will be no answer.
    os.kill(broker.pid, second)
    assert broker.wait() == 1
    assert f" WARNING {second.name} again: stopping at once" in broker.log_text().splitlines()[-1]
    assert (broker.directory / "running").exists()
    begin = len(broker.lines)
    broker.start()
    assert "the former broker did not stop cleanly (crashed): recovering" in broker.lines[begin]


def test_what_falls_due_while_the_broker_stops_comes_once(broker):
    """Some messages are due in each millisecond of the stop, and behind it."""
    bodies = [b"%d" % number for number in range(1500)]
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        channel.queue_declare("q", durable=True)
        channel.queue_bind("q", "late")
        for number, body in enumerate(bodies):
            properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 1 + number % 500})
            channel.basic_publish("late", "", body, properties)
    for _ in range(2):
        broker.stop()
        broker.start()
    found = []
    with blocking(broker) as connection:
        for method, _, body in connection.channel().consume("q", auto_ack=True, inactivity_timeout=SECONDS):
            assert method is not None
            found.append(body)
            if len(found) >= len(bodies):
                break
        assert connection.channel().queue_declare("q", passive=True).method.message_count == 0
    assert sorted(found) == sorted(bodies)


def test_what_was_confirmed_before_a_stop_is_there_after_it_unmarked(broker):
    with blocking(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        for number in range(10):
            channel.basic_publish("", "q", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    begin = len(broker.lines)
    broker.restart()
    assert "recover" not in "\n".join(broker.lines[begin:])
    with blocking(broker) as connection:
        channel = connection.channel()
        got = [channel.basic_get("q", auto_ack=True) for _ in range(10)]
    assert [(body, method.redelivered) for method, _, body in got] == [(b"%d" % n, False) for n in range(10)]


# --- files of the process

def test_the_pid_file_holds_the_process_while_it_runs(make_broker, tmp_path):
    path = tmp_path / "brokerd.pid"
    path.write_text("1 of before")
    broker = make_broker("--pid-file", path).start()
    assert path.read_text() == f"{broker.pid}\n"
    broker.stop()
    assert not path.exists()


def test_a_pid_file_that_is_gone_already_does_not_disturb_the_end(make_broker, tmp_path):
    broker = make_broker("--pid-file", tmp_path / "brokerd.pid").start()
    (tmp_path / "brokerd.pid").unlink()
    broker.stop()


def test_logs_go_to_their_file_and_a_new_one_after_a_reload(tmp_path):
    # Not by the fixture, which reads the port from standard error.
    path, moved = tmp_path / "log", tmp_path / "log.1"
    process = subprocess.Popen(
        [sys.executable, "-m", "brokerd", "-D", str(tmp_path / "data"), "-p", "0", "--log-file", str(path)],
        env=environment(), cwd=ROOT, stderr=subprocess.PIPE)
    try:
        wait_for(lambda: path.exists() and "listening" in path.read_text(), process)
        path.rename(moved)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: path.exists() and "reloaded" in path.read_text(), process)
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        told = process.communicate()[1]
    assert told == b""
    assert "reloaded" not in moved.read_text()
    assert path.read_text().splitlines()[-1].endswith("stopped")


def test_a_thread_of_the_broker_keeps_the_loop_waiting_for_no_longer_than_half_a_millisecond(tmp_path):
    """It is Python that gives the lock back; here only that it was told to, before the first client is served."""
    script = """
import os, sys
from brokerd.server import collector

def begin():
    print(sys.getswitchinterval(), flush=True)
    os._exit(0)

collector.begin = begin
sys.argv = ["brokerd", "-D", sys.argv[1], "-p", "0", "--no-sync"]
from brokerd.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "data")], env=environment(), cwd=ROOT,
                          capture_output=True, text=True, timeout=SECONDS)
    assert float(done.stdout) <= 0.0005, done.stderr


def wait_for(condition, process):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- reload

@pytest.fixture
def configured(make_broker, tmp_path):
    """A broker with a file of options, and what writes the file and waits until it was read again."""
    path = tmp_path / "brokerd.toml"
    path.write_text("")
    broker = make_broker("-c", path, "--heartbeat-seconds", 7).start()

    def reload(text, until="reloaded"):
        path.write_text(text)
        begin = len(broker.lines)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_for_log(until, begin)
        # A line of a client may come late.
        return [line.split(None, 2)[2] for line in broker.lines[begin:] if re.search(r" (not )?reload", line)]

    return broker, reload


def test_a_reload_applies_what_can_change_and_names_what_cannot(configured, connect):
    broker, reload = configured
    connect(broker)
    assert reload("connection_max = 1\nchannel_max = 5\nheartbeat_seconds = 9") == [
        "WARNING reload: channel_max takes effect at the next start",
        "INFO    reload: connection_max is now 1",
        "INFO    reloaded",
    ]
    refused = connect(broker, "connection.close").answer
    assert refused.reply_text == "NOT_ALLOWED - connection refused: node connection limit (1) is reached"
    assert reload("") == ["INFO    reload: connection_max is now 0", "INFO    reloaded"]
    connect(broker)


def test_a_reload_of_the_same_changes_nothing(configured):
    _, reload = configured
    assert reload("") == ["INFO    reloaded"]


@pytest.mark.parametrize(("text", "told"), [
    ("connection_max = 1\nchannel_max = 0", "channel_max = 0: must be a whole number from 1 to 65535"),
    ("conection_max = 1", "unknown option conection_max; did you mean connection_max?"),
    ("=", "not TOML: Invalid statement (at line 1, column 1)"),
])
def test_a_faulty_reload_changes_nothing(configured, connect, tmp_path, text, told):
    broker, reload = configured
    assert reload(text) == [f"ERROR   not reloaded, nothing changed: {tmp_path}/brokerd.toml: {told}"]
    connect(broker)
    connect(broker)


def test_a_reload_can_silence_the_log_and_wake_it_again(configured, connect, tmp_path):
    broker, reload = configured
    begin = len(broker.lines)
    connect(broker)
    (tmp_path / "brokerd.toml").write_text("log_level = 'error'\nconnection_max = 1")
    os.kill(broker.pid, signal.SIGHUP)
    # Of this nothing is said: the log is silent.  The effect of the other option tells that it was read.
    while (peer := Peer(broker.port)).answer.NAME == "connection.open-ok":
        peer.close()
    peer.close()
    assert {"INFO    reload: log_level is now info", "INFO    reloaded"} < set(reload(""))
    assert "now error" not in "\n".join(broker.lines[begin:])


# --- a disk that fails

FAILING = """
import errno, os
from brokerd.server.threads import FileSyncs
from brokerd.store.disk import Disk

def fails(path):
    return os.path.basename(path).startswith(os.environ["FAILS"]) and os.path.exists(os.environ["FROM"])

def fdatasync(self, fd, path, honest=Disk.fdatasync):
    if fails(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    honest(self, fd, path)

def begin(self, files, filesystem, done, honest=FileSyncs.begin):
    # The thread of the data plane gets a pipe instead, which cannot be synced.
    files = [(os.pipe()[0] if fails(path) else fd, path) for fd, path in files]
    if "WAITS" in os.environ and any(fails(path) for _, path in files):
        wait(self, files, filesystem, done, honest)
    else:
        honest(self, files, filesystem, done)

def wait(self, files, filesystem, done, honest):
    # Say that the sync has begun, and begin it when the test says so.
    open(os.environ["WAITS"] + ".begun", "w").close()
    def look():
        if os.path.exists(os.environ["WAITS"]):
            honest(self, files, filesystem, done)
        else:
            self._loop.call_later(0.01, look)
    look()

Disk.fdatasync = fdatasync
FileSyncs.begin = begin
"""


@pytest.fixture
def failing(make_broker, tmp_path):
    """Make a broker whose syncs of files of one name fail; from when on, is for the test to say."""
    def make(name, **more):
        return make_broker(first=FAILING, env={"FAILS": name, "FROM": str(tmp_path / "now")} | more).start()

    make.begin = (tmp_path / "now").touch
    return make


def test_a_sync_that_fails_stops_the_broker_and_nothing_is_confirmed(failing):
    broker = failing("msgs.")
    connection = blocking(broker)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("", "q", b"kept", properties)
    failing.begin()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_publish("", "q", b"promised nothing", properties)
    assert broker.wait() == 1
    last = broker.log_text().splitlines()[-1]
    assert re.search(r" CRITICAL sync failed, stopping at once: \[Errno 22\] Invalid argument: '.*/msgs\.0+1'$", last)
    broker.check_log()
    assert (broker.directory / "running").exists()
    broker.env, broker.first = {}, ""
    broker.start()
    with blocking(broker) as connection:
        assert connection.channel().basic_get("q")[2] == b"kept"


def test_a_sync_that_fails_while_the_broker_stops_is_no_clean_end(failing, tmp_path):
    waits = tmp_path / "waits"
    broker = failing("msgs.", WAITS=str(waits))
    with conversation.Peer(broker.port) as peer:
        peer.open()
        peer.ask(methods.QueueDeclare(queue="q", durable=True))
        peer.ask(methods.ConfirmSelect())
        peer.send(conversation.publish("q", b"kept", delivery_mode=2))
        assert isinstance(peer.read(), methods.BasicAck)    # The names of the files are on disk, too.
        failing.begin()
        peer.send(conversation.publish("q", b"promised nothing", delivery_mode=2))
        conversation.eventually((tmp_path / "waits.begun").exists)
        os.kill(broker.process.pid, signal.SIGTERM)
        broker.wait_for_log("stopping")
    waits.touch()
    assert broker.wait() == 1
    assert "sync failed, stopping at once" in broker.log_text().splitlines()[-1]
    broker.check_log()
    assert (broker.directory / "running").exists()


def test_a_definition_whose_sync_fails_is_not_answered(failing):
    broker = failing("definitions.amqp")
    connection = blocking(broker)
    channel = connection.channel()
    channel.queue_declare("q", durable=True)
    failing.begin()
    channel.queue_declare("transient")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.queue_declare("p", durable=True)
    assert broker.wait() == 1
    assert "sync failed, stopping at once" in broker.log_text()


# --- alarms

def test_publishers_are_blocked_while_the_disk_is_low_and_told_when_it_is_over(configured):
    broker, reload = configured
    said = []
    connection = blocking(broker)
    connection.add_on_connection_blocked_callback(lambda _, frame: said.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: said.append("over"))
    channel = connection.channel()
    channel.queue_declare("q")
    reload(f"free_disk_min_octets = {1 << 50}", "low on disk: .* publishers are blocked")
    channel.basic_publish("", "q", b"waits")
    while not said:
        connection.process_data_events(SECONDS)
    reload("free_disk_min_octets = 1", "no longer low on disk")
    while len(said) < 2:
        connection.process_data_events(SECONDS)
    assert said == ["low on disk", "over"]
    assert channel.queue_declare("q").method.message_count == 1
    connection.close()


# --- small parts of it

def test_the_clock_is_the_machines():
    clock = Clock()
    before, now, after = time.time_ns(), clock.epoch_ns(), time.time_ns()
    assert before <= now <= after
    before, now, after = time.monotonic(), clock.monotonic(), time.monotonic()
    assert before <= now <= after


@pytest.mark.parametrize(("host", "near"), [
    ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True),
    ("192.0.2.1", False), ("::ffff:192.0.2.1", False), ("::2", False), ("2001:db8::127.0.0.1", False),
])
def test_this_machine_is_told_from_others(host, near):
    assert is_loopback(host) is near

"""A backup has all that was there at one instant, while messages come and go; what is restored of it is just that."""

import json
import shutil
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from tests.broker import Broker
from tests.conversations.peer import Peer, publish

from brokerd.cli import ctl_restore
from brokerd.cli.brokerctl import cli
from brokerd.cli.ctl_client import Client
from brokerd.errors import BrokerError
from brokerd.wire import methods

TOKENS = 20  # that transactions move between two queues


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker") / "data") as broker, Peer(broker.port).open() as peer:
        for name, arguments in [
            ("plain", {}), ("journaled", {"x-order-journal": True}), ("here", {}), ("there", {}), ("empty", {}),
            ("levels", {"x-max-priority": 3}), ("stream", {"x-queue-type": "stream"}),
            ("once", {"x-message-deduplication": True}),
        ]:
            peer.ask(methods.QueueDeclare(queue=name, durable=True, arguments=arguments))
        peer.ask(methods.QueueDeclare(queue="passing", durable=False))
        peer.ask(methods.ExchangeDeclare(exchange="x", type="fanout", durable=True))
        for name in ("plain", "journaled"):
            peer.ask(methods.QueueBind(queue=name, exchange="x"))
        peer.confirming()
        peer.put_all([publish("here", b"%d" % n, delivery_mode=2) for n in range(TOKENS)])
        peer.put_all([publish("levels", b"%d" % n, delivery_mode=2, priority=n % 3) for n in range(9)])
        peer.put_all([publish("stream", b"%d" % n, delivery_mode=2) for n in range(9)])
        peer.put_all([publish("once", b"1", delivery_mode=2, headers={"x-deduplication-header": "k"})])
        with Client(str(broker.directory)) as client:
            client.ask("user add", {"user": "ann", "password": "secret"})
            client.ask("policy set", {"name": "p", "pattern": "^no", "definition": {"max-length": 7}})
        yield broker
    broker.check_log()


class Traffic:
    """Publishes numbers to x, and moves tokens between "here" and "there" by transactions, until it is told to stop."""

    def __init__(self, port):
        self.sent = self.confirmed = 0
        self._stop = threading.Event()
        self.busy = threading.Event()
        self._threads = [threading.Thread(target=work, args=(port,)) for work in (self._publish, self._move)]
        for thread in self._threads:
            thread.start()

    def _publish(self, port):
        with Peer(port).open() as peer:
            peer.confirming()
            while not self._stop.is_set():
                batch = range(self.sent, self.sent + 50)
                self.sent += 50
                peer.put_all([publish("", b"%d" % n, exchange="x", delivery_mode=2) for n in batch])
                self.confirmed += 50
                if self.confirmed == 500:
                    self.busy.set()

    def _move(self, port):
        with Peer(port).open() as peer:
            peer.ask(methods.TxSelect())
            ways = [("here", "there"), ("there", "here")]
            while not self._stop.is_set():
                for source, target in ways:
                    got = peer.got(source, no_ack=False)
                    if got is not None:
                        peer.send(publish(target, got.body, delivery_mode=2),
                                  methods.BasicAck(delivery_tag=got.method.delivery_tag))
                        peer.ask(methods.TxCommit())

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def back_up(broker, out):
    with Client(str(broker.directory)) as client:
        return client.ask("node backup", {"out": str(out)}, seconds=None)


@pytest.fixture(scope="module")
def backup(broker, tmp_path_factory):
    """The folder of a backup, and how many messages were confirmed before it began and sent when it was over."""
    out = tmp_path_factory.mktemp("backup") / "out"
    traffic = Traffic(broker.port)
    try:
        assert traffic.busy.wait(60)
        confirmed = traffic.confirmed
        answer = back_up(broker, out)
        sent = traffic.sent
    finally:
        traffic.stop()
    assert (answer["queues"], answer["out"]) == (8, str(out))
    return out, confirmed, sent


def restored(backup, directory):
    ctl_restore.restore(str(backup), str(directory), lambda text: None)
    return Broker(directory)


def test_a_dry_run_needs_no_folder_and_a_restore_does(backup):
    done = CliRunner().invoke(cli, ["restore", "--dry-run", str(backup[0])])
    assert done.exit_code == 0, done.output
    assert "are as the manifest" in done.output
    refused = CliRunner().invoke(cli, ["restore", str(backup[0])])
    assert (refused.exit_code, "Missing argument 'DIR'" in refused.output) == (2, True)


def test_a_restored_broker_has_what_was_there_at_one_instant(backup, tmp_path):
    out, confirmed, sent = backup
    with restored(out, tmp_path / "data") as broker, Peer(broker.port).open() as peer:
        plain, journaled = peer.bodies("plain"), peer.bodies("journaled")
        assert plain == journaled == [b"%d" % n for n in range(len(plain))]
        assert confirmed <= len(plain) <= sent
        tokens = peer.bodies("here") + peer.bodies("there")
        assert sorted(tokens, key=int) == [b"%d" % n for n in range(TOKENS)]
        assert peer.bodies("levels") == [b"%d" % n for level in (2, 1, 0) for n in range(level, 9, 3)]
        assert peer.bodies("empty") == []
        peer.confirming()
        peer.put_all([publish("once", b"2", delivery_mode=2, headers={"x-deduplication-header": "k"})])
        assert peer.bodies("once") == [b"1"]
        peer.put_all([publish("plain", b"more", delivery_mode=2)])
        assert peer.bodies("plain") == [b"more"]
        with Client(str(broker.directory)) as client:
            assert {row["name"] for row in client.ask("user list", {})["items"]} == {"guest", "ann"}
            assert [row["name"] for row in client.ask("policy list", {})["items"]] == ["p"]
            names = {row["name"] for row in client.ask("queue list", {})["items"]}
            assert "passing" not in names
            assert {"plain", "empty", "stream"} <= names
            assert len(client.ask("message browse", {"queue": "stream"})["items"]) == 9


def test_the_audit_finds_nothing_wrong_in_a_backup(backup):
    out, _, _ = backup
    done = subprocess.run([sys.executable, "-m", "brokerd.cli.brokerctl", "audit", str(out), "--queues", "journaled"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def files_of(out):
    manifest = json.loads((out / "manifest.json").read_text())
    return [file["path"] for queue in manifest["queues"] for file in queue["files"]] + \
        [file["path"] for file in manifest["files"]]


@pytest.mark.parametrize("what", ["octet", "short", "gone", "manifest", "dump", "outside"])
def test_of_a_damaged_backup_nothing_is_restored(backup, tmp_path, what):
    out = shutil.copytree(backup[0], tmp_path / "out")
    victim = out / next(path for path in files_of(out) if "/msgs." in path)
    octets = victim.read_bytes()
    text = (out / "manifest.json").read_text()
    wanted = victim.name
    if what == "octet":
        victim.write_bytes(octets[:200] + bytes([octets[200] ^ 1]) + octets[201:])
    elif what == "short":
        victim.write_bytes(octets[:-1])
    elif what == "gone":
        victim.unlink()
    elif what == "manifest":
        (out / "manifest.json").write_text(text[:-20])
        wanted = "manifest.json is damaged"
    elif what == "dump":
        (out / "manifest.json").write_text(text.replace('"backup": true', '"backup": false'))
        wanted = "is a dump of queues"
    else:
        (out / "manifest.json").write_text(text.replace('"path": "users.json"', '"path": "../users.json"'))
        wanted = "outside of the backup"
    for dry in (True, False):
        with pytest.raises(BrokerError, match=wanted):
            ctl_restore.restore(str(out), str(tmp_path / "data"), lambda text: None, dry=dry)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_written_over(backup, broker, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(BrokerError, match="is not empty"):
        ctl_restore.restore(str(backup[0]), str(tmp_path / "full"), lambda text: None)
    with pytest.raises(BrokerError, match="is not empty"):
        back_up(broker, tmp_path / "full")
    with pytest.raises(BrokerError, match="in the data directory"):
        back_up(broker, broker.directory / "backup")


def test_a_backup_that_was_killed_is_none_and_the_next_start_makes_another(backup, tmp_path):
    out = tmp_path / "out"
    with restored(backup[0], tmp_path / "data") as broker:
        with Client(str(broker.directory)) as client, pytest.raises((BrokerError, OSError)):
            threads = []

            def kill_at_first(far):
                if not threads:
                    threads.append(far)
                    broker.kill()

            client.ask("node backup", {"out": str(out)}, kill_at_first, seconds=None)
        assert not out.exists()
        with pytest.raises(BrokerError, match="manifest.json is missing"):
            ctl_restore.restore(f"{out}.partial", str(tmp_path / "other"), lambda text: None)
        broker.start()
        with pytest.raises(BrokerError, match="remove it first"):
            back_up(broker, out)
        assert back_up(broker, tmp_path / "out2")["queues"] == 8

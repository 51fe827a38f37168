"""--follow judges the publish order while messages come, and reports each fault once, whatever batch has it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading

import pika
import pytest
from tests.audit import writer
from tests.broker import ROOT
from tests.server.clients import close_all, connect

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.verdicts import audit
from brokerd.cli.ctl_audit import main
from brokerd.spark.follow import Follower, follow

OPTIONS = writer.Options(segment_messages=50, kept=True)


class Following:
    """A queue's folder that grows, and what ``follow`` finds in it."""

    def __init__(self, spark, folder):
        self.spark, self.root, self.checkpoint = spark, str(folder / "data"), str(folder / "checkpoint")
        self.level = writer.swapped(300, 20, 119, 240)       # The second lies where the first batch ends.
        self.said = []

    def reach(self, count):
        messages = self.level.messages[:count]
        events = self.level.events[self.level.events["ts"] <= messages["ts"][-1] + 3000]
        shutil.rmtree(f"{self.root}/vhost", ignore_errors=True)
        writer.write_queue(self.root, writer.Level(messages, events), OPTIONS)

    def turn(self):
        """What one more batch finds: (seq, publish, the one before)."""
        found = []
        follower = Follower(self.checkpoint, found.append, self.said.append)
        follow(self.spark, self.root, {}, self.checkpoint, follower, once=True)
        assert follower.found == len(found)
        return [(each["seq"], each["publish_seq"], each["former"]) for each in found]


@pytest.fixture
def following(spark, tmp_path):
    return Following(spark, tmp_path)


def test_a_fault_is_told_once_also_where_batches_meet(following):
    for count, found in ((120, [22]), (200, [121]), (200, []), (300, [242])):
        following.reach(count)
        assert following.turn() == [(seq, seq - 1, seq) for seq in found]
    assert following.said == ["120 messages of 1 publisher, 1 out of order",
                              "80 messages of 1 publisher, 1 out of order",
                              "100 messages of 1 publisher, 1 out of order"]
    assert sorted(os.listdir(f"{following.checkpoint}/publishers")) == ["1.json", "2.json"]  # Of the last batches.


def test_all_behind_a_later_one_are_found_as_the_audit_finds_them(following):
    following.level.messages["publish_seq"][117] = 123      # message 118, two before the first batch ends
    found = []
    for count in (120, 300):
        following.reach(count)
        found += [seq for seq, _, _ in following.turn()]
    (judged,) = audit(open_source(following.root))
    (row,) = [row for row in judged.audits if row["audit"] == "publish_order"]
    assert row["by_rule"] == len(found)     # The audit names 118, and the others as its consequences.
    assert found == [22, 119, 120, 121, 122, 123, 242]


def test_who_was_silent_longest_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr("brokerd.spark.follow.PUBLISHERS_KEPT", 2)
    follower = Follower(str(tmp_path), print, print)
    follower._save(0, {"a": 1, "b": 2, "c": 3})
    assert follower._load(0) == {"b": 2, "c": 3}


def test_a_batch_that_is_made_again_finds_what_it_found(following, spark):
    following.reach(120)
    following.turn()
    following.reach(200)
    first = following.turn()
    for name in ("1", ".1.crc"):    # As after a crash between the batch and Spark's note that it is done.
        os.remove(f"{following.checkpoint}/spark/commits/{name}")
    assert following.turn() == first == [(121, 120, 121)]


def test_what_was_known_of_publishers_must_be_there(following):
    following.reach(120)
    following.turn()
    os.remove(f"{following.checkpoint}/publishers/0.json")
    with pytest.raises(AuditError, match=r"publishers/0\.json: .*begin anew with another checkpoint"):
        Follower(following.checkpoint, print, print).batch(None, 1)


def test_the_program_goes_on_where_it_ended(following, capsys):
    arguments = [following.root, "--follow", "--once", "--checkpoint", following.checkpoint]
    following.reach(120)
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "violated    publish_order         /: q  message 22: publish 21 of connection 1, channel 1 comes behind 22",
        "violated: 1 message out of the order of publishing"]
    assert "120 messages of 1 publisher" in said.err
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("held: 0 messages out of the order")
    assert main([*arguments[:-1], f"{following.checkpoint}2", "--fail-on", "none"]) == 0


class Busy:
    """All of Spark that ``follow`` asks for; its queries end with these errors, and then well."""

    def __init__(self, *errors):
        self.errors, self.starts = list(errors), 0

    def stop(self):
        pass

    def start(self):
        self.starts += 1
        return self

    def wait(self, _):
        if self.errors:
            raise self.errors.pop(0)
        return True

    def __getattr__(self, name):
        if name in ("readStream", "writeStream"):
            return self
        return self.wait if name == "awaitTermination" else lambda *_, **__: self


def test_a_query_whose_python_came_too_late_is_started_again(tmp_path):
    late = RuntimeError("terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST")
    spark = Busy(late, late)
    follow(spark, "there", {}, str(tmp_path), Follower(str(tmp_path), print, print))
    assert spark.starts == 3
    for errors, starts in (([RuntimeError("else")], 1), ([late] * 10, 10)):
        spark = Busy(*errors)
        with pytest.raises(RuntimeError):
            follow(spark, "there", {}, str(tmp_path), Follower(str(tmp_path), print, print))
        assert spark.starts == starts


def test_a_query_whose_java_ended_with_this_process_is_no_fault(tmp_path):
    gone, stopped = ConnectionError("the JVM is gone"), threading.Event()
    spark = Busy(gone)

    def stop():
        raise gone

    spark.stop = stop
    with pytest.raises(ConnectionError):
        follow(spark, "there", {}, str(tmp_path), Follower(str(tmp_path), print, print), stopped=stopped)
    spark.errors.append(gone)

    def wait(_):
        stopped.set()
        raise gone

    spark.wait = wait
    follow(spark, "there", {}, str(tmp_path), Follower(str(tmp_path), print, print), stopped=stopped)
    assert spark.starts == 2


def test_a_query_ends_when_it_is_told_to(tmp_path):
    stopped, spark = threading.Event(), Busy()
    spark.wait = lambda _: stopped.set()    # No end by itself.
    follow(spark, "there", {}, str(tmp_path), Follower(str(tmp_path), print, print), stopped=stopped)
    assert (spark.starts, stopped.is_set()) == (1, True)


@pytest.mark.parametrize("arguments", [
    ["--follow", "--report", "out"], ["--follow", "--engine", "both"], ["--follow", "--audits", "fifo"],
    ["--follow", "--from", "2026-01-01"], ["--follow", "--group-by", "routing-key"], ["--once"],
    ["--checkpoint", "there"]])
def test_what_does_not_go_together_is_refused(tmp_path, arguments, capsys):
    assert main([str(tmp_path), *arguments]) == 2
    assert "--follow" in capsys.readouterr().err


def test_a_working_broker_is_followed_until_interrupted(broker, tmp_path):
    channel = connect(broker).channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "spark_jobs" / "ordering_audit.py"), str(broker.directory), "--follow",
         "--master", "local[1]", "--checkpoint", str(tmp_path / "checkpoint")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(600, process.kill)    # None is reached while all is well.
    limit.start()
    try:
        for count in (30, 20):
            for _ in range(count):
                channel.basic_publish("", "orders", b"an order", pika.BasicProperties(delivery_mode=2))
            seen = 0
            while seen < count:
                line = process.stderr.readline()
                assert line, "the audit ended"
                seen += int(match[1]) if (match := re.search(r"(\d+) messages? of 1 publisher$", line)) else 0
            assert seen == count
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate()
    finally:
        limit.cancel()
        process.kill()
        process.communicate()
        close_all()
    assert (process.returncode, out) == (0, "held: 0 messages out of the order of publishing\n"), errors
    assert "Traceback" not in errors, errors

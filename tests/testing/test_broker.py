"""The verbs of brokerd.testing.Broker, each seen by a real client."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time

import pika
import pytest
from tests.broker import SECONDS, environment
from tests.testing.conftest import connect

from brokerd.errors import BrokerError
from brokerd.testing import Broker, BrokerFailed

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def count(channel, queue):
    return channel.queue_declare(queue, passive=True).method.message_count


def publish(broker, queue, *bodies):
    """Publish with confirms, on a connection of its own."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, PERSISTENT)


def bodies(broker, queue):
    found = []
    with connect(broker) as connection:
        channel = connection.channel()
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            found.append(body)
    return found


# --- life

def test_a_broker_serves_and_leaves_no_trace():
    with Broker() as broker:
        publish(broker, "q", b"x")
        assert bodies(broker, "q") == [b"x"]
        folder, pid = broker.data_dir.parent, broker.pid
        assert folder.exists()
    assert not folder.exists()
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.port  # noqa: B018


def test_a_broker_can_be_used_with_async_with():
    async def main():
        async with Broker() as broker:
            await asyncio.to_thread(publish, broker, "q", b"x")
            return await asyncio.to_thread(bodies, broker, "q"), broker.data_dir.parent

    found, folder = asyncio.run(main())
    assert found == [b"x"]
    assert not folder.exists()


def test_a_stopped_broker_starts_again_empty():
    broker = Broker()
    for _ in range(2):
        with broker:
            with connect(broker) as connection:
                assert connection.channel().queue_declare("q", durable=True).method.message_count == 0
            publish(broker, "q", b"x")
            assert abs(broker.clock.now().timestamp() - time.time()) < 3000
            broker.clock.advance(hours=1)


def test_brokerctl_reaches_it_by_its_data_directory(shared, channel):
    channel.queue_declare("q", durable=True)
    done = subprocess.run(
        [sys.executable, "-m", "brokerd.cli.brokerctl", "-D", str(shared.data_dir), "queue", "ordering", "q", "--vhost",
         shared.vhost], env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "strict-fifo" in done.stdout


def test_a_broker_that_is_started_twice_says_so():
    with Broker() as broker, pytest.raises(BrokerFailed, match="runs already"):
        broker.start()


def test_a_port_that_is_taken_is_told_and_leaves_no_trace():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        broker = Broker(amqp_port=other.getsockname()[1])
        with pytest.raises(BrokerFailed, match="Address already in use"):
            broker.start()
    assert broker._keeper is None


def test_two_brokers_do_not_know_each_other():
    with Broker() as one, Broker() as other:
        publish(one, "q", b"x")
        with connect(other) as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
            connection.channel().queue_declare("q", passive=True)
        assert one.port != other.port


def test_options_of_brokerd_are_in_force():
    with Broker(message_octets_max=100, default_user="alice", default_password="p@ss/word") as broker:
        assert "alice:p%40ss%2Fword@" in broker.url()
        with connect(broker) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            channel.confirm_delivery()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="larger than"):
                channel.basic_publish("", "q", bytes(101))


def test_it_listens_where_it_is_told_to():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with Broker(bind="::1") as broker:
        assert f"@[::1]:{broker.port}/" in broker.url()
        publish(broker, "q", b"x")
        broker.crash()
        assert bodies(broker, "q") == [b"x"]


def test_the_log_can_be_read_after_the_end():
    with Broker() as broker:
        broker.crash()
    assert broker.log_text().count("(AMQP)") == 2


def test_an_answer_that_nobody_waited_for_is_no_answer_to_the_next_question():
    with Broker() as broker:
        hear, broker._hear = broker._hear, lambda keeper: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            broker.make_vhost("v")
        broker._hear = hear
        assert broker.drop_connections() == 0
        broker.delete_vhost("v")


@pytest.mark.parametrize(("options", "error", "text"), [
    ({"no_such": 1}, TypeError, "no option no_such"),
    ({"data_dir": "x"}, TypeError, "no option data_dir"),
    ({"heartbeat_seconds": -1}, ValueError, "heartbeat_seconds must be a whole number from 0 to 65535, not -1"),
    ({"heartbeat_seconds": True}, ValueError, "must be a whole number"),
    ({"log_level": "loud"}, ValueError, "must be one of debug"),
    ({"bind": ""}, ValueError, "must be a text that is not empty|must be a text"),
])
def test_an_impossible_option_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        Broker(**options)


def test_a_fork_neither_stops_the_broker_nor_asks_it():
    with Broker() as broker:
        pid = os.fork()
        if pid == 0:
            try:
                broker.drop_connections()
            except BrokerFailed:
                broker.stop()
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        publish(broker, "q", b"x")


def test_threads_may_share_a_broker(shared):
    made = []

    def work():
        made.extend(shared.make_vhost() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 80
    for name in made:
        shared.delete_vhost(name)


# --- vhosts

def test_vhosts_are_apart_and_their_connections_end_with_them(shared):
    one, other = shared.make_vhost(), shared.make_vhost("with/a slash")
    assert shared.url().endswith("/with%2Fa%20slash")
    with connect(shared, one) as first, connect(shared, other) as second:
        first.channel().queue_declare("q")
        second.channel().queue_declare("q", durable=True)
        shared.delete_vhost(other)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="is down"):
            second.process_data_events(time_limit=60)
        first.channel().queue_declare("q", passive=True)
    assert shared.vhost == one
    shared.delete_vhost(one)
    assert shared.vhost == "/"


def test_vhosts_that_are_there_or_not_there_are_told(shared):
    for verb, name, text in ((shared.make_vhost, "/", "vhost '/' is there already"),
                             (shared.delete_vhost, "none", "there is no vhost 'none'")):
        with pytest.raises(BrokerError) as told:
            verb(name)
        assert (type(told.value), str(told.value)) == (BrokerError, text)


@pytest.mark.parametrize(("name", "error"), [(3, TypeError), ("", ValueError), ("x" * 256, ValueError),
                                             ("\ud800", ValueError)])
def test_no_vhost_has_a_name_that_no_url_has(shared, name, error):
    with pytest.raises(error, match="the name of a vhost must be"):
        shared.make_vhost(name)
    assert shared.vhost == "/"


# --- what may happen

def test_a_crash_keeps_durable_messages_and_the_port():
    with Broker() as broker:
        publish(broker, "q", b"1", b"2")
        port, pid = broker.port, broker.pid
        with connect(broker) as connection:
            broker.crash()
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                connection.process_data_events(time_limit=60)
        assert (broker.port, broker.pid != pid) == (port, True)
        assert bodies(broker, "q") == [b"1", b"2"]


def test_a_vhost_and_the_clock_outlast_a_crash():
    with Broker() as broker:
        broker.make_vhost("v")
        with connect(broker, "v") as connection:
            connection.channel().queue_declare("q", durable=True, arguments={"x-message-ttl": 3_600_000})
        broker.clock.advance(days=1)
        publish_to = connect(broker, "v")
        publish_to.channel().basic_publish("", "q", b"tomorrow", PERSISTENT)
        publish_to.close()
        broker.crash()
        with connect(broker, "v") as connection:
            assert count(connection.channel(), "q") == 1    # The clock is where it was: it has not expired.
            broker.clock.advance(hours=1)
            assert count(connection.channel(), "q") == 0


def test_during_an_outage_the_port_refuses_connections():
    with Broker() as broker:
        publish(broker, "q", b"x")
        with broker.outage():
            assert broker.pid == 0
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, broker.port))
            with pytest.raises(BrokerFailed, match="the broker is down"):
                broker.drop_connections()
        assert bodies(broker, "q") == [b"x"]


def test_a_broker_that_somebody_else_has_killed_is_told_and_can_be_started_again():
    with Broker() as broker:
        publish(broker, "q", b"x")
        os.kill(broker.pid, 9)
        with pytest.raises(BrokerFailed, match="the broker has ended|the broker is down"):
            broker.drop_connections()
        broker.crash()
        assert bodies(broker, "q") == [b"x"]


def test_a_power_cut_takes_what_was_not_confirmed_and_nothing_else():
    with Broker(sync=True) as broker:
        publish(broker, "q", b"confirmed")
        connection = connect(broker)
        channel = connection.channel()
        channel.basic_publish("", "q", b"on its way", pika.BasicProperties(delivery_mode=1))
        assert count(channel, "q") == 2
        broker.power_cut()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(time_limit=60)
        assert bodies(broker, "q") == [b"confirmed"]
        assert "power lost" in broker.log_text()


def test_power_cuts_by_chance_keep_what_was_confirmed():
    with Broker(sync=True) as broker:
        confirmed = set()
        for seed in range(3):
            new = [b"%d.%d" % (seed, n) for n in range(20)]
            publish(broker, "q", *new)
            confirmed |= set(new)
            broker.power_cut(seed=seed)
            with connect(broker) as connection:     # Nobody takes them: acks need not be there after a power cut.
                channel = connection.channel()
                found = {channel.basic_get("q")[2] for _ in range(count(channel, "q"))}
            assert found == confirmed


def test_a_power_cut_without_syncs_is_refused_and_changes_nothing():
    with Broker() as broker:
        publish(broker, "q", b"x")
        pid = broker.pid
        with pytest.raises(BrokerError) as told:
            broker.power_cut()
        assert type(told.value) is BrokerError
        assert str(told.value) == "power_cut() needs Broker(sync=True): without syncs everything would be gone"
        assert broker.pid == pid
        assert bodies(broker, "q") == [b"x"]


def test_the_seed_of_a_power_cut_is_a_whole_number(shared):
    with pytest.raises(TypeError, match="seed must be a whole number, not 'x'"):
        shared.power_cut(seed="x")


def test_while_the_disk_is_full_publishers_are_blocked_and_no_file_grows(shared, channel):
    told = []
    connection = channel.connection
    connection.add_on_connection_blocked_callback(lambda _, method: told.append(method.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    channel.queue_declare("q", durable=True)
    with shared.disk_full():
        channel.basic_publish("", "q", b"x")
        while not told:
            connection.process_data_events(time_limit=1)
        assert "disk" in told[0]
        with pytest.raises(BrokerError, match="No space left on device"):
            shared.make_vhost("new")
    while len(told) < 2:
        connection.process_data_events(time_limit=1)
    assert told[1] == "unblocked"
    shared.make_vhost("new")
    shared.delete_vhost("new")
    assert count(channel, "q") == 1


def test_a_full_disk_ends_by_its_handle_too(shared, channel):
    full = shared.disk_full()
    full.end()
    full.end()
    shared.delete_vhost(shared.make_vhost())


def test_dropped_connections_end_without_a_word(shared, channel):
    channel.queue_declare("mine", exclusive=True)
    assert shared.drop_connections() == 1
    with pytest.raises(pika.exceptions.StreamLostError):
        channel.connection.process_data_events(time_limit=60)
    with connect(shared) as again:
        again.channel().queue_declare("mine", exclusive=True)   # The old one went with its connection.
    assert shared.drop_connections() == 0


# --- the clock

def test_the_clock_goes_forward_only(shared):
    before = shared.clock.now()
    with pytest.raises(ValueError, match="forward only"):
        shared.clock.advance(hours=-1)
    with pytest.raises(ValueError, match="forward only"):
        shared.clock.advance()
    with pytest.raises(ValueError, match="no further than the year 2200"):
        shared.clock.advance(days=365 * 200)
    for beyond in ({"days": 10**9}, {"days": -10**9}, {"seconds": 10**400}, {"hours": float("inf")}):
        with pytest.raises(ValueError, match="forward only, and no further than the year 2200"):
            shared.clock.advance(**beyond)
    with pytest.raises(ValueError, match="by a number, not by nan"):
        shared.clock.advance(hours=1, seconds=float("nan"))
    with pytest.raises(TypeError):
        shared.clock.advance(seconds="1")
    assert (shared.clock.now() - before).total_seconds() < 3600
    shared.clock.advance(hours=1)
    assert (shared.clock.now() - before).total_seconds() >= 3600


def test_what_expires_on_the_way_expires_at_its_own_time(shared, channel):
    """A message that goes round a retry queue takes its time for each round."""
    channel.queue_declare("work", durable=True, arguments={
        "x-message-ttl": 3_600_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
    channel.queue_declare("retry", durable=True, arguments={
        "x-message-ttl": 3_600_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"})
    channel.queue_declare("end", durable=True)
    channel.basic_publish("", "work", b"x", PERSISTENT)
    shared.clock.advance(minutes=90)
    assert [count(channel, name) for name in ("work", "retry", "end")] == [0, 1, 0]
    shared.clock.advance(minutes=25)
    assert [count(channel, name) for name in ("work", "retry", "end")] == [0, 1, 0]
    shared.clock.advance(minutes=5)
    assert [count(channel, name) for name in ("work", "retry", "end")] == [0, 0, 1]
    channel.basic_publish("", "work", b"y", PERSISTENT)
    shared.clock.advance(minutes=121)   # Both rounds in one step.
    assert count(channel, "end") == 2


def test_many_messages_expire_in_one_step(shared, channel):
    channel.queue_declare("q", durable=True, arguments={"x-message-ttl": 3_600_000})
    for _ in range(5000):
        channel.basic_publish("", "q", b"x")
    assert count(channel, "q") == 5000
    shared.clock.advance(hours=1)
    assert count(channel, "q") == 0


def test_unused_queues_go_when_their_time_has_come(shared, channel):
    channel.queue_declare("q", arguments={"x-expires": 3_600_000})
    shared.clock.advance(minutes=59)
    assert count(channel, "q") == 0
    shared.clock.advance(hours=1, minutes=1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue 'q'"):
        count(channel, "q")


def test_delayed_messages_come_when_their_time_has_come(shared, channel):
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "later")
    channel.basic_publish("later", "", b"x", pika.BasicProperties(delivery_mode=2, headers={"x-delay": 7_200_000}))
    shared.clock.advance(hours=1)
    assert count(channel, "q") == 0
    shared.clock.advance(hours=1)
    assert count(channel, "q") == 1


def test_a_delivery_that_nobody_acks_comes_back_after_its_timeout(shared, channel):
    channel.queue_declare("q", durable=True, arguments={"x-consumer-timeout": 3_600_000})
    channel.basic_publish("", "q", b"x", PERSISTENT)
    seen = []
    channel.basic_consume("q", lambda *message: seen.append(message[1].redelivered))
    while not seen:
        channel.connection.process_data_events(time_limit=1)
    shared.clock.advance(minutes=30)
    channel.connection.process_data_events()
    assert seen == [False]
    shared.clock.advance(hours=1)
    while len(seen) < 2:
        channel.connection.process_data_events(time_limit=1)
    assert seen == [False, True]


def test_heartbeats_do_not_notice_the_clock(shared, vhost):
    parameters = pika.URLParameters(shared.url())
    parameters.heartbeat = 10
    connection = pika.BlockingConnection(parameters)
    shared.clock.advance(days=30)
    connection.channel().queue_declare("q")
    connection.close()

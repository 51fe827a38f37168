"""Shovels between real brokers."""

import os
import signal

import pika
import pytest
from tests.broker import reserved_port
from tests.carriers import rounds
from tests.carriers.ends import ask, await_true, bodies, fill, headers, numbered, shovel, take, uri
from tests.server import clients

from brokerd.carriers import shovel as shovels
from brokerd.carriers.carriage import KEPT_OCTETS_MAX
from brokerd.carriers.shovel import IDS
from brokerd.queues.tracked import MADE_UP

DROPS = {"x-message-deduplication": True, "x-deduplication-header": "x-shovel-id", "x-cache-size": IDS}


@pytest.fixture
def pair(make_broker):
    yield make_broker().start(), make_broker().start()
    clients.close_all()     # Else the brokers would wait for them.


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_all_messages_come_in_the_order_of_their_queue_with_properties_and_large_bodies(pair, mode):
    here, there = pair
    sent = [*numbered(500), b"x" * 300_000, b"", b"end"]
    fill(here, "from", sent, properties=pika.BasicProperties(
        delivery_mode=2, content_type="text/plain", message_id="m", headers={"h": [1, {"a": True}]}))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", ack_mode=mode)
    found = take(there, "to", len(sent))
    assert bodies(found) == sent
    assert {(p.content_type, p.message_id, p.delivery_mode) for _, p, _ in found} == {("text/plain", "m", 2)}
    assert found[0][1].headers == {"h": [1, {"a": True}]}
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish", "no-ack"])
def test_a_message_that_is_larger_than_what_a_link_keeps_at_a_time_passes(pair, mode):
    here, there = pair
    fill(here, "from", [bytes(2 * KEPT_OCTETS_MAX), b"end"])
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", ack_mode=mode)
    assert list(map(len, bodies(take(there, "to", 2)))) == [2 * KEPT_OCTETS_MAX, 3]
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)


def test_a_shovel_pulls_from_elsewhere_to_an_exchange_with_the_messages_own_key(pair):
    here, there = pair
    channel = clients.connect(here).channel()
    channel.queue_declare("to", durable=True)
    channel.queue_bind("to", "amq.topic", "a.#")
    fill(there, "a.b", numbered(3))
    shovel(here, src_uri=["amqp://nobody:x@127.0.0.1:1", uri(there)], src_queue="a.b", dest_exchange="amq.topic")
    found = take(here, "to", 3)
    assert bodies(found) == numbered(3)
    assert {key for key, _, _ in found} == {"a.b"}


def test_what_goes_to_an_exchange_is_shovelled_by_its_key(pair):
    here, there = pair
    shovel(here, src_exchange="amq.topic", src_exchange_key="wanted.*", dest_uri=uri(there), dest_queue="to")
    channel = clients.connect(here).channel()
    await_true(lambda: any(
        row["source"] == "amq.topic" for row in ask(here, "binding list")["items"]))
    channel.basic_publish("amq.topic", "other.1", b"no")
    channel.basic_publish("amq.topic", "wanted.1", b"yes")
    assert bodies(take(there, "to", 1)) == [b"yes"]


def test_messages_that_the_destination_refuses_come_later_in_their_order(pair):
    here, there = pair
    limited = {"x-max-length": 10, "x-overflow": "reject-publish"}
    fill(there, "to", [], limited)
    fill(here, "from", numbered(25))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to")
    await_true(lambda: ask(there, "queue show", queue="to")["messages"] == 10)
    # Acknowledged is what was confirmed, and no more.
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 15)
    assert ask(here, "queue show", queue="from")["messages"] == 15
    assert bodies(take(there, "to", 25, limited)) == numbered(25)


@pytest.mark.parametrize("retries", [0, 1])
def test_after_dest_retries_a_refused_message_goes_where_dead_letters_go(pair, retries):
    here, there = pair
    fill(there, "to", [b"full"], {"x-max-length": 1, "x-overflow": "reject-publish"})
    fill(here, "dead", [])
    fill(here, "from", numbered(2), {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", dest_retries=retries)
    assert bodies(take(here, "dead", 2)) == numbered(2)
    assert here.wait_for_log(r"shovel 's' in vhost '/': the destination refused a message \(basic.nack\)")
    assert ask(there, "queue show", queue="to")["messages"] == 1
    assert "PRECONDITION_FAILED" not in here.log_text()    # The queue there has arguments of its own.


def test_a_destination_queue_that_is_deleted_is_made_again_and_gets_what_was_returned(pair):
    here, there = pair
    fill(here, "from", numbered(1))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to")
    take(there, "to", 1)
    clients.connect(there).channel().queue_delete("to")
    fill(here, "from", numbered(50))
    assert bodies(take(there, "to", 50)) == numbered(50)


def test_a_source_queue_that_is_deleted_is_made_again(pair):
    here, there = pair
    fill(here, "from", numbered(1))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to")
    take(there, "to", 1)
    clients.connect(here).channel().queue_delete("from")
    fill(here, "from", numbered(5, start=5))
    assert bodies(take(there, "to", 5)) == numbered(5, start=5)


def test_a_predeclared_queue_that_is_not_there_is_waited_for(pair):
    here, there = pair
    shovel(here, src_queue="from", src_predeclared=True, dest_uri=uri(there), dest_queue="to")
    here.wait_for_log(r"shovel 's' in vhost '/': source: the broker answered 404 .*no queue 'from' in.*next try in")
    fill(here, "from", numbered(2))
    assert bodies(take(there, "to", 2)) == numbered(2)


def test_a_shovel_with_an_end_stops_there_and_its_parameter_goes(pair):
    here, there = pair
    fill(here, "from", numbered(20))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", src_delete_after=7)
    here.wait_for_log("shovel 's' in vhost '/' has done its work, and is removed")
    await_true(lambda: not ask(here, "parameter list")["items"])
    assert bodies(take(there, "to", 7)) == numbered(7)
    await_true(lambda: ask(here, "queue show", queue="from")["messages_ready"] == 13)
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", src_delete_after="queue-length")
    await_true(lambda: not ask(here, "parameter list")["items"])
    assert bodies(take(there, "to", 13)) == numbered(13, start=7)


def test_a_shovel_that_is_set_again_before_its_process_hears_of_its_end_works_again(make_broker):
    # Changes that come within so many seconds are told to the process of links together.
    here = make_broker(first="import brokerd.server.links; brokerd.server.links.SOON_SECONDS = 1.5").start()
    for turn in range(3):
        fill(here, "from", [b"%d" % turn]).connection.close()
        shovel(here, src_queue="from", dest_queue="to", src_delete_after="queue-length")
        await_true(lambda: not ask(here, "shovel list")["items"])
    assert bodies(take(here, "to", 3)) == numbered(3)
    clients.close_all()


def test_a_paused_shovel_carries_nothing_also_after_a_restart(pair):
    here, there = pair
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to")
    ask(here, "shovel pause", name="s")
    await_true(lambda: ask(here, "shovel show", name="s")["state"] == "paused")
    fill(here, "from", numbered(1))
    clients.close_all()
    here.restart()
    shovel(here, "other", src_queue="nothing", dest_uri=uri(there), dest_queue="mark")
    fill(here, "nothing", [b"mark"])
    take(there, "mark", 1)
    assert ask(here, "queue show", queue="from")["messages_ready"] == 1
    ask(here, "shovel resume", name="s")
    assert bodies(take(there, "to", 1)) == numbered(1)


def test_names_and_logins_may_have_octets_that_are_no_utf_8(pair):
    here, there = pair
    name = "q\udcff"
    ask(there, "user add", user="é", password="p\udcff")
    ask(there, "permission set", user="é", vhost="/", configure=".*", write=".*", read=".*")
    fill(here, "from", numbered(2))
    shovel(here, src_queue="from", dest_uri=uri(there).replace("guest:guest", "%C3%A9:p%FF"), dest_queue=name)
    shovel(here, "back", src_uri=uri(there), src_queue=name, dest_exchange="amq.fanout", dest_exchange_key=name)
    channel = fill(here, "to", [])
    channel.queue_bind("to", "amq.fanout")
    assert bodies(take(here, "to", 2)) == numbered(2)


def test_headers_tell_of_the_way_and_properties_are_replaced(pair):
    here, there = pair
    fill(here, "from", [b"a"], properties=headers(x=1))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", dest_add_forward_headers=True,
           dest_add_timestamp_header=True, dest_publish_properties={"content_type": "a/b", "delivery_mode": 1})
    ((_, properties, _),) = take(there, "to", 1)
    (passed,) = properties.headers["x-shovelled"]
    assert passed["shovel-name"] == "s"
    assert passed["src-queue"] == "from"
    assert passed["dest-queue"] == "to"
    assert "guest:guest" not in str(passed)
    assert properties.headers["x"] == 1
    assert properties.headers["x-shovelled-timestamp"] > 1_600_000_000
    assert (properties.content_type, properties.delivery_mode) == ("a/b", 1)


def test_no_password_is_in_the_log(pair):
    here, _ = pair
    shovel(here, src_queue="from", dest_uri="amqp://me:secret@127.0.0.1:1/v?heartbeat=5", dest_queue="to")
    line = here.wait_for_log("shovel 's' in vhost '/': amqp://me@127.0.0.1:1/v: Connection refused: next try in")
    assert line
    assert "secret" not in here.log_text()


@pytest.mark.parametrize("kind", [rounds.PLAIN, rounds.DEDUP, rounds.STREAM])
def test_kill_9_of_either_end_loses_nothing_keeps_the_order_and_with_dedup_brings_nothing_twice(tmp_path, kind):
    rounds.run(3, str(tmp_path), kind=kind)


def test_with_dedup_the_destination_drops_what_comes_again_and_takes_what_is_new(pair):
    """Also a message with the number of an earlier one, in a queue that was made again."""
    here, there = pair
    fill(here, "from", numbered(3))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", dedup=True)
    first = take(there, "to", 3, DROPS)
    ids = [properties.headers["x-shovel-id"] for _, properties, _ in first]
    assert len(set(ids)) == 3
    assert not {"x-message-seq", "x-message-ns"} & set(first[0][1].headers)
    fill(there, "to", [b"again"], DROPS, headers(**{"x-shovel-id": ids[1]}))
    clients.connect(here).channel().queue_delete("from")
    fill(here, "from", [b"0"])
    assert bodies(take(there, "to", 1, DROPS)) == [b"0"]
    assert ask(there, "queue show", queue="to")["messages"] == 0


def test_a_message_that_passes_two_shovels_with_dedup_has_the_id_of_the_last(pair):
    here, there = pair
    fill(here, "from", [b"a"])
    fill(here, "between", [], DROPS)    # The shovel that is first would declare it, and "two" without these arguments.
    shovel(here, "one", src_queue="from", dest_queue="between", dedup=True)
    shovel(here, "two", src_queue="between", dest_uri=uri(there), dest_queue="to", dedup=True)
    ((_, properties, _),) = take(there, "to", 1, DROPS)
    assert " two between 1 " in properties.headers["x-shovel-id"]


def test_with_dedup_a_queue_that_would_take_a_message_twice_is_refused_in_words(pair):
    here, there = pair
    fill(there, "to", [])
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", dedup=True)
    here.wait_for_log("shovel 's' in vhost '/': .*406 .*inequivalent arg 'x-message-deduplication'.* next try in")


@pytest.mark.parametrize("keys", [{"dest_exchange": "amq.fanout"}, {"dest_queue": "to", "dest_predeclared": True}])
def test_with_dedup_what_is_there_already_may_drop_by_the_id(pair, keys):
    here, there = pair
    channel = fill(there, "to", [], {"x-message-deduplication": True, "x-deduplication-header": "x-shovel-id"})
    channel.queue_bind("to", "amq.fanout")
    fill(here, "from", [b"a"])
    shovel(here, src_queue="from", dest_uri=uri(there), dedup=True, **keys)
    await_true(lambda: ask(there, "queue show", queue="to")["messages"] == 1)
    _, properties, _ = next(channel.consume("to"))
    clients.publish_confirmed(channel, "to", [b"again"], properties)
    assert ask(there, "queue show", queue="to")["messages"] == 1


def reason_of(broker, name="s"):
    return ask(broker, "shovel show", name=name)["reason"]


def test_what_is_missing_is_told_before_the_first_message_with_its_side(broker):
    keys = {"a": {"src_queue": "x", "dest_exchange": "nix"}, "b": {"src_exchange": "nix", "dest_queue": "x"},
            "c": {"src_queue": "x", "dest_queue": "nix", "dest_predeclared": True}}
    texts = {"a": "destination: the broker answered 404 NOT_FOUND - no exchange 'nix' in vhost '/'",
             "b": "source: the broker answered 404 NOT_FOUND - no exchange 'nix' in vhost '/'",
             "c": "destination: the broker answered 404 NOT_FOUND - no queue 'nix' in vhost '/'"}
    for name, each in keys.items():
        shovel(broker, name, **each)
    for name, text in texts.items():
        await_true(lambda name=name, text=text: reason_of(broker, name) == text)
    channel = clients.connect(broker).channel()
    channel.exchange_declare("nix", durable=True)
    channel.queue_declare("nix", durable=True)
    await_true(lambda: {row["state"] for row in ask(broker, "shovel list")["items"]} == {"running"})
    clients.close_all()


def test_of_several_addresses_each_has_its_reason_in_their_order_and_each_failure_one_line(broker):
    port, _held = reserved_port()
    there = [f"amqp://u:secret@127.0.0.1:{port}/{name}" for name in "abcdefg"]
    shovel(broker, src_queue="x", dest_uri=there, dest_queue="y")
    expected = "; ".join(f"amqp://u@127.0.0.1:{port}/{name}: Connection refused" for name in "abcde") + "; and 2 more"
    await_true(lambda: reason_of(broker) == expected)
    before = ask(broker, "shovel show", name="s")["next_try"]

    def tried_again():
        row = ask(broker, "shovel show", name="s")
        assert row["reason"] in (expected, "")
        return row["next_try"] > before + 500

    await_true(tried_again)
    lines = [line for line in broker.log_text().splitlines() if "shovel" in line or "unix socket" in line]
    assert len(lines) == 1, lines
    assert f"shovel 's' in vhost '/': {expected}: next try in " in lines[0]


@pytest.mark.parametrize("verb", ["shovel pause", "shovel delete"])
def test_a_pause_or_delete_is_answered_when_nothing_more_is_moved(pair, verb):
    here, there = pair
    fill(here, "from", numbered(1))
    for turn in range(3):
        name = f"s{turn}"
        shovel(here, name, src_queue="from", dest_uri=uri(there), dest_queue="to")
        shovel(here, f"other{turn}", src_queue="others", dest_uri=uri(there), dest_queue="others")
        await_true(lambda: {row["state"] for row in ask(here, "shovel list")["items"]} <= {"running", "paused"})
        ask(here, verb, name=name)
        for broker in (here, there):
            rows = ask(broker, "connection list")["items"]
            names = [row["client_properties"].get("connection_name", "") for row in rows]
            assert not [each for each in names if f"shovel '{name}'" in each], names
    fill(here, "from", numbered(5))
    assert ask(here, "queue show", queue="from")["consumers"] == 0


def test_the_last_shovels_delete_and_that_of_one_whose_process_was_killed_are_answered(broker):
    shovel(broker, src_queue="from", dest_queue="to")
    await_true(lambda: ask(broker, "shovel show", name="s")["state"] == "running")
    ask(broker, "shovel delete", name="s")
    assert ask(broker, "queue show", queue="from")["consumers"] == 0
    shovel(broker, src_queue="from", dest_queue="to")
    await_true(lambda: rounds.process_of_links(broker))
    os.kill(rounds.process_of_links(broker), signal.SIGKILL)
    ask(broker, "shovel pause", name="s")
    ask(broker, "shovel delete", name="s")
    assert ask(broker, "shovel list")["items"] == []


def test_a_local_address_has_all_rights_in_its_vhost_and_one_with_a_user_those_of_the_user(broker):
    ask(broker, "user add", user="low", password="low", tags=["policymaker"])
    ask(broker, "permission set", user="low", vhost="/", configure="^$", write="^$", read="^from$")
    fill(broker, "from", numbered(2))
    fill(broker, "to", [])
    reads = uri(broker).replace("guest:guest", "low:low")
    shovel(broker, "local", src_uri=reads, src_queue="from", dest_queue="to")
    assert bodies(take(broker, "to", 2)) == numbered(2)
    ask(broker, "shovel delete", name="local")
    fill(broker, "from", [b"kept"])
    shovel(broker, "as-user", src_uri=reads, dest_uri=reads, src_queue="from", dest_queue="to")
    broker.wait_for_log("shovel 'as-user' in vhost '/': destination: the broker answered 403 ACCESS_REFUSED .*'to'")
    assert ask(broker, "queue show", queue="to")["messages"] == 0
    ask(broker, "shovel delete", name="as-user")
    assert bodies(take(broker, "from", 1)) == [b"kept"]
    clients.close_all()


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_messages_that_wait_for_their_next_try_come_once_and_in_order_after_the_links_end(pair, end):
    here, there = pair
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    fill(there, "to", [b"first"], full)
    fill(here, "from", numbered(5))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", dest_queue_args=full)
    await_true(lambda: "tried 2 times" in reason_of(here))
    if end == "restart":
        ask(here, "shovel restart", name="s")
    else:
        os.kill(rounds.process_of_links(here), signal.SIGKILL)
    await_true(lambda: "tried 1 times" in reason_of(here))      # It begins anew, also with its waits.
    assert ask(here, "queue show", queue="from")["messages"] == 5
    found = take(there, "to", 6, full)
    assert bodies(found) == [b"first", *numbered(5)]
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    assert ask(there, "queue show", queue="to")["messages"] == 0


def test_the_lag_is_what_waits_at_the_source_now(pair):
    here, there = pair
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    fill(there, "to", [b"first"], full).connection.close()
    channel = fill(here, "from", numbered(10))
    shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to", src_prefetch_count=1)
    await_true(lambda: ask(here, "shovel show", name="s")["lag"] == 9)     # One is on its way.
    clients.publish_confirmed(channel, "from", numbered(5, start=10), clients.PERSISTENT)
    await_true(lambda: ask(here, "shovel show", name="s")["lag"] == 14)
    ask(there, "queue delete", queue="to")
    await_true(lambda: ask(here, "shovel show", name="s")["lag"] == 0)


@pytest.mark.parametrize("arguments", [{"x-stream-reader": "out"}, {"x-stream-offset": "first"}])
def test_a_stream_source_loses_nothing_and_repeats_nothing_that_was_confirmed(pair, arguments):
    here, there = pair
    channel = fill(here, "events", numbered(10), {"x-queue-type": "stream"})
    if "x-stream-reader" in arguments:
        ask(here, "stream set_offset", queue="events", reader="out", offset=1, create=True)
    shovel(here, src_queue="events", dest_uri=uri(there), dest_queue="to", src_consumer_args=arguments)

    def lag():
        return [row["lag"] for row in ask(here, "stream readers", queue="events")["items"] if row["reader"]]

    await_true(lambda: ask(here, "shovel show", name="s")["state"] == "running" and lag() == [0])
    for end in range(2):
        first = 10 + 10 * end
        pid = rounds.process_of_links(here)
        os.kill(pid, signal.SIGKILL)
        clients.publish_confirmed(channel, "events", numbered(10, start=first), clients.PERSISTENT)
        await_true(lambda first=first: ask(there, "queue show", queue="to")["messages"] == first + 10)
        await_true(lambda: lag() == [0])
    assert bodies(take(there, "to", 30)) == numbered(30)
    assert ask(there, "queue show", queue="to")["messages"] == 0


def test_what_comes_to_a_stream_while_its_shovel_is_paused_is_carried_later(pair):
    here, there = pair
    channel = fill(here, "events", [b"before"], {"x-queue-type": "stream"})
    shovel(here, src_queue="events", dest_uri=uri(there), dest_queue="to")
    await_true(lambda: ask(here, "shovel show", name="s")["state"] == "running")
    ask(here, "shovel pause", name="s")
    clients.publish_confirmed(channel, "events", numbered(10), clients.PERSISTENT)
    ask(here, "shovel resume", name="s")
    assert bodies(take(there, "to", 10)) == numbered(10)


def test_a_shovel_with_an_end_leaves_a_reader_that_a_stream_may_forget(pair):
    here, there = pair
    fill(here, "events", numbered(10), {"x-queue-type": "stream"})
    for times in (1, 2):  # A second one of the same name begins where it is told to.
        shovel(here, src_queue="events", dest_uri=uri(there), dest_queue="to", src_delete_after="queue-length",
               src_consumer_args={"x-stream-offset": "first"})
        await_true(lambda: not ask(here, "shovel list")["items"])
        readers = [row["reader"] for row in ask(here, "stream readers", queue="events")["items"]]
        assert len(readers) == times
        assert all(MADE_UP.fullmatch(reader) for reader in readers)
        assert bodies(take(there, "to", 10)) == numbered(10)


def test_the_name_of_a_shovels_reader_fits_and_is_its_own():
    assert shovels.reader_name("s", "v", "brokerd@h-1") == "shovel s in v of brokerd@h-1"
    long = [shovels.reader_name("ä" * 120 + end, "v", "brokerd@h-1") for end in "ab"]
    assert len({*long}) == 2
    assert all(len(each.encode()) <= 255 for each in long)

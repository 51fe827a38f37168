"""Federated exchanges and queues between real brokers."""

import pytest
from tests.carriers import rounds
from tests.carriers.ends import QUICK, ask, await_true, bodies, fill, headers, numbered, take, uri
from tests.server import clients


@pytest.fixture
def brokers(make_broker):
    def make(count):
        return [make_broker().start() for _ in range(count)]

    yield make
    clients.close_all()


def federate(broker, upstream, pattern, name="up", policy="fed", **keys):
    """Make an upstream, and a policy that federates what matches with all upstreams."""
    value = {"uri": uri(upstream), "reconnect-delay": QUICK}
    value |= {key.replace("_", "-"): each for key, each in keys.items()}
    ask(broker, "parameter set", component="federation-upstream", name=name, value=value)
    ask(broker, "policy set", name=policy, pattern=pattern, definition={"federation-upstream-set": "all"})


def bound(broker, exchange, key="#", queue="q"):
    channel = clients.connect(broker).channel()
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, key)
    return channel


def await_bindings(broker, exchange, *keys):
    """Wait until the exchange of an upstream has just these bindings to links."""
    def there():
        return sorted(row["routing_key"] for row in ask(broker, "binding list")["items"]
                      if row["source"] == exchange and row["destination"].startswith("federation: "))
    await_true(lambda: there() == sorted(keys))


def identity(broker):
    return ask(broker, "node show")["identity"]


def await_links(broker, count, state="running"):
    await_true(lambda: [row["state"] for row in ask(broker, "federation_link list")["items"]] == [state] * count)


def test_an_exchange_gets_what_is_published_upstream_and_matches_its_bindings(brokers):
    here, there = brokers(2)
    channel = bound(here, "amq.topic", "a.*")
    federate(here, there, "^amq.topic$")
    await_bindings(there, "amq.topic", "a.*")
    await_links(here, 1)
    source = clients.connect(there).channel()
    for number, key in enumerate(("a.1", "b.1", "a.2")):
        source.basic_publish("amq.topic", key, b"%d" % number, headers(x=1))
    found = take(here, "q", 2)
    assert [(key, body) for key, _, body in found] == [("a.1", b"0"), ("a.2", b"2")] or bodies(found) == [b"0", b"2"]
    (passed,) = found[0][1].headers["x-received-from"]
    assert (passed["exchange"], passed["cluster-name"], passed["vhost"]) == ("amq.topic", identity(there), "/")
    assert "guest:guest" not in passed["uri"]
    channel.queue_bind("q", "amq.topic", "b.*")
    channel.queue_unbind("q", "amq.topic", "a.*")
    await_bindings(there, "amq.topic", "b.*")
    source.basic_publish("amq.topic", "a.3", b"no")
    source.basic_publish("amq.topic", "b.3", b"yes")
    assert bodies(take(here, "q", 1)) == [b"yes"]


def test_an_upstream_exchange_that_was_deleted_is_made_again_when_a_binding_is_wanted(brokers):
    here, there = brokers(2)
    for broker in (here, there):
        ask(broker, "exchange declare", exchange="news", type="topic")
    channel = bound(here, "news", "a")
    federate(here, there, "^news$")
    await_bindings(there, "news", "a")
    ask(there, "exchange delete", exchange="news")
    channel.queue_bind("q", "news", "b")
    await_bindings(there, "news", "a", "b")
    await_links(here, 1)
    clients.connect(there).channel().basic_publish("news", "a", b"new")
    assert bodies(take(here, "q", 1)) == [b"new"]


def test_what_a_link_made_upstream_goes_with_its_policy(brokers):
    here, there = brokers(2)
    bound(here, "amq.fanout")
    federate(here, there, "^amq.fanout$")
    await_bindings(there, "amq.fanout", "#")
    ask(here, "policy delete", name="fed")
    await_true(lambda: not [row for row in ask(there, "queue list")["items"] if row["name"].startswith("federation")])
    assert not [row for row in ask(there, "exchange list")["items"] if row["name"].startswith("federation")]
    await_true(lambda: not ask(here, "federation_link list")["items"])


def test_brokers_of_one_host_and_one_cluster_name_each_get_all_messages_of_an_upstream_and_of_each_other(brokers):
    first, second, there = brokers(3)
    for broker in (first, second, there):
        ask(broker, "global_parameter set", name="cluster_name", value="copied")
    assert len({identity(broker) for broker in (first, second, there)}) == 3
    for broker in (first, second):
        bound(broker, "amq.fanout")
        federate(broker, there, "^amq.fanout$")
        await_links(broker, 1)
    await_true(lambda: len([row for row in ask(there, "queue list")["items"]
                            if row["name"].startswith("federation: amq.fanout -> brokerd@")]) == 2)
    await_bindings(there, "amq.fanout", "#", "#")
    source = clients.connect(there).channel()
    for body in numbered(10):
        source.basic_publish("amq.fanout", "", body, clients.PERSISTENT)
    assert bodies(take(first, "q", 10)) == bodies(take(second, "q", 10)) == numbered(10)


def test_a_new_cluster_name_and_a_restart_leave_the_upstream_queue_and_its_messages_as_they_are(brokers):
    here, there = brokers(2)
    bound(here, "amq.fanout")
    federate(here, there, "^amq.fanout$")
    await_links(here, 1)

    def queues():
        return [row["name"] for row in ask(there, "queue list")["items"]]

    assert queues() == [f"federation: amq.fanout -> {identity(here)}"]
    before = queues()
    ask(here, "global_parameter set", name="cluster_name", value="north")
    clients.close_all()
    here.stop()
    source = clients.connect(there).channel()
    source.confirm_delivery()
    source.basic_publish("amq.fanout", "", b"meanwhile", clients.PERSISTENT)
    here.start()
    assert bodies(take(here, "q", 1)) == [b"meanwhile"]
    await_links(here, 1)
    assert queues() == before


def test_what_a_policy_names_and_is_not_there_is_told_until_it_comes_and_no_process_runs_for_it(brokers):
    here, there = brokers(2)
    fill(here, "q", [])

    def links():
        return [(row["upstream"], row["state"], row["reason"]) for row in ask(here, "federation_link list")["items"]]

    ask(here, "policy set", name="p", pattern="^q$", definition={"federation-upstream": "late"})
    await_true(lambda: links() == [("late", "terminated", "there is no upstream 'late'")])
    here.wait_for_log("federation of queue 'q' in vhost '/' with upstream 'late': terminated: there is no upstream")
    assert not rounds.process_of_links(here)
    here.restart()
    await_true(lambda: links() == [("late", "terminated", "there is no upstream 'late'")])
    ask(here, "parameter set", component="federation-upstream", name="late", value={"uri": uri(there)})
    await_links(here, 1, "idle")
    ask(here, "parameter clear", component="federation-upstream", name="late")
    await_true(lambda: links() == [("late", "terminated", "there is no upstream 'late'")])
    ask(here, "policy delete", name="p")
    await_true(lambda: links() == [])


def test_messages_wait_upstream_while_the_broker_here_is_gone(brokers):
    here, there = brokers(2)
    bound(here, "amq.fanout")
    federate(here, there, "^amq.fanout$")
    await_bindings(there, "amq.fanout", "#")
    await_links(here, 1)
    clients.close_all()
    here.kill()
    source = clients.connect(there).channel()
    source.confirm_delivery()
    for body in numbered(20):
        source.basic_publish("amq.fanout", "", body, clients.PERSISTENT)
    here.start()
    assert bodies(take(here, "q", 20)) == numbered(20)
    await_bindings(there, "amq.fanout", "#")


@pytest.mark.parametrize(("hops", "reached"), [(1, 2), (2, 3), (5, 3)])
def test_in_a_loop_of_three_each_broker_gets_a_message_once_as_far_as_hops_allow(brokers, hops, reached):
    ring = brokers(3)
    for broker, upstream in zip(ring, [ring[-1], *ring[:-1]], strict=True):
        bound(broker, "amq.fanout")
        federate(broker, upstream, "^amq.fanout$", max_hops=hops)
    for broker in ring:
        await_links(broker, 1)
    source = clients.connect(ring[0]).channel()

    def marks(broker):
        return ask(broker, "queue show", queue="q")["messages"]

    # Bindings that go on from broker to broker settle first.
    await_true(lambda: [len([row for row in ask(broker, "binding list")["items"]
                             if row["source"] == "amq.fanout" and row["destination"].startswith("federation: ")])
                        for broker in ring] == [1, 1, 1])
    source.basic_publish("amq.fanout", "", b"once", clients.PERSISTENT)
    expected = [int(number < reached) for number in range(3)]
    await_true(lambda: list(map(marks, ring)) == expected)
    source.basic_publish("amq.fanout", "", b"twice", clients.PERSISTENT)
    await_true(lambda: list(map(marks, ring)) == [2 * each for each in expected])


def test_a_queue_gets_messages_of_its_upstream_in_order_while_it_has_a_consumer(brokers):
    here, there = brokers(2)
    fill(there, "q", numbered(30))
    fill(here, "q", [])
    federate(here, there, "^q$")
    await_links(here, 1, "idle")
    assert ask(there, "queue show", queue="q")["messages_ready"] == 30
    found = take(here, "q", 30)
    assert bodies(found) == numbered(30)
    assert found[0][1].headers["x-received-from"][0]["queue"] == "q"
    await_true(lambda: ask(there, "queue show", queue="q")["messages"] == 0)


def test_a_consumer_upstream_comes_first_and_none_here_means_nothing_comes(brokers):
    here, there = brokers(2)
    fill(here, "q", [b"mine"])
    fill(there, "q", numbered(3))
    federate(here, there, "^q$", queue="q")
    await_links(here, 1, "idle")
    assert bodies(take(there, "q", 3)) == numbered(3)
    assert bodies(take(here, "q", 1)) == [b"mine"]


def test_a_set_names_its_upstreams_and_overrides_their_keys(brokers):
    here, first, second = brokers(3)
    fill(here, "q", [])
    fill(first, "x", [b"1"])
    fill(second, "q", [b"2"])
    for name, broker in (("one", first), ("two", second)):
        ask(here, "parameter set", component="federation-upstream", name=name,
            value={"uri": uri(broker), "reconnect-delay": QUICK})
    ask(here, "parameter set", component="federation-upstream-set", name="set",
        value=[{"upstream": "one", "queue": "x"}])
    ask(here, "policy set", name="p", pattern="^q$", definition={"federation-upstream-set": "set"})
    await_links(here, 1, "idle")
    assert bodies(take(here, "q", 1)) == [b"1"]
    assert ask(second, "queue show", queue="q")["messages"] == 1


@pytest.mark.parametrize("kind", [rounds.FEDERATION, rounds.EXCHANGE])
def test_kill_9_of_either_end_of_a_federation_link_loses_nothing_and_keeps_the_order(tmp_path, kind):
    rounds.run(3, str(tmp_path), kind=kind)

"""Ends of links that are hard to reach or to write to: TLS, an address that changes, a full disk."""

import errno
import re

import pytest
from tests.broker import Broker
from tests.carriers.ends import ask, await_true, bodies, fill, numbered, shovel, take, uri
from tests.faults.test_injected import BODY, FOR_EVER, WRITES, Machine, build_injector
from tests.server import clients
from tests.server.certificates import Authority

LISTENING = r"listening on .*:(\d+) \(AMQP over TLS\)"


@pytest.fixture
def pair(make_broker):
    yield make_broker().start(), make_broker().start()
    clients.close_all()     # Else the brokers would wait for them.


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture
def over_tls(make_broker, authority):
    """A broker, and its address over TLS."""
    certificate, key = authority.sign("server", "/CN=localhost")
    broker = make_broker("--amqps-port", 0, "--cert", certificate, "--key", key).start()
    port = re.findall(LISTENING, broker.log_text())[-1]
    yield broker, f"amqps://guest:guest@localhost:{port}/?cacertfile={authority.file}&verify=verify_peer"
    clients.close_all()


def test_both_ends_may_be_reached_over_tls_alone(make_broker, over_tls):
    here = make_broker().start()
    there, address = over_tls
    sent = [*numbered(200), bytes(300_000), b"end"]
    fill(there, "from", sent)
    shovel(here, "pull", src_uri=address, src_queue="from", dest_queue="between")
    shovel(here, "push", src_queue="between", dest_uri=address, dest_queue="to")
    assert bodies(take(there, "to", len(sent))) == sent


def test_a_server_whose_certificate_nobody_knows_gets_nothing(make_broker, over_tls, tmp_path):
    here = make_broker().start()
    there, address = over_tls
    stranger = Authority(tmp_path / "theirs")
    fill(here, "from", numbered(3))
    shovel(here, src_queue="from", dest_queue="to",
           dest_uri=re.sub(r"cacertfile=[^&]*", f"cacertfile={stranger.file}", address))
    here.wait_for_log("shovel 's' in vhost '/': amqps://guest@localhost.*certificate.*next try in")
    assert not ask(there, "queue list")["items"]


def test_a_destination_that_comes_back_at_another_address_of_the_list_gets_all_in_order(pair):
    here, there = pair
    moved = Broker(there.directory)
    fill(here, "from", numbered(50))
    shovel(here, src_queue="from", dest_uri=[uri(there), uri(moved)], dest_queue="to")
    await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    there.kill()
    fill(here, "from", numbered(50, start=50))
    try:
        moved.start()
        assert bodies(take(moved, "to", 100)) == numbered(100)
        await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
    finally:
        clients.close_all()
        moved.kill()


def test_a_destination_whose_disk_is_full_gets_the_rest_in_order_once_there_is_room(make_broker, tmp_path):
    here = make_broker().start()
    machine = Machine(tmp_path, build_injector(tmp_path))
    there = machine.broker.start()
    try:
        sent = [b"%06d" % number + BODY for number in range(150)]     # More than its segments of 1 MiB have room for.
        fill(here, "from", sent)
        fill(there, "to", sent[:1])
        machine.fail(WRITES, 1, FOR_EVER, errno.ENOSPC)
        shovel(here, src_queue="from", dest_uri=uri(there), dest_queue="to")
        await_true(lambda: machine.calls)
        await_true(lambda: ask(here, "shovel show", name="s")["state"] == "blocked")
        assert ask(here, "queue show", queue="from")["messages"] > 0
        machine.be_sound()
        assert bodies(take(there, "to", 151)) == [sent[0], *sent]
        await_true(lambda: ask(here, "queue show", queue="from")["messages"] == 0)
        machine.check_log()
    finally:
        clients.close_all()
        there.kill()

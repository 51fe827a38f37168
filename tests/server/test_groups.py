"""Message groups as their users have them: a hundred customers, ten workers of which one dies and one rejects.

Each worker is a real client in a thread of its own; what it does is noted under one lock, in the order in which it
happens.
"""

import contextlib
import json
import socket
import threading
from collections import defaultdict

import pika
import pytest
from tests.broker import SECONDS
from tests.conversations.peer import Peer, eventually
from tests.conversations.peer import publish as publish_octets
from tests.server.clients import close_all, connect

from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.cli import brokerctl
from brokerd.wire import methods

CUSTOMERS, ORDERS = 100, 12


class Work:
    """The notes of all workers."""

    def __init__(self):
        self.lock = threading.Lock()
        self.begun = defaultdict(list)      # customer: numbers of orders, as they were handed to workers
        self.settled = defaultdict(list)    # ... as they were acknowledged
        self.holders = {}                   # customer: the worker that has an order of it
        self.faults = []
        self.over = threading.Event()
        self.count = 0

    def begin(self, customer, number, worker):
        with self.lock:
            if self.holders.setdefault(customer, worker) != worker:
                self.faults.append(f"{worker} has {customer}, and {self.holders[customer]} too")
            self.begun[customer].append(number)

    def end(self, customer, number, worker, *, settled):
        with self.lock:
            if settled:
                self.settled[customer].append(number)
                self.count += 1
                if self.count == CUSTOMERS * ORDERS:
                    self.over.set()
            if self.holders.get(customer) == worker:
                del self.holders[customer]


class Worker(threading.Thread):
    """Consumes until told to stop.  ``rejects``: it returns every third order once; ``dies_after``: it closes its
    socket with orders unsettled."""

    def __init__(self, broker, work, name, *, rejects=False, dies_after=None):
        super().__init__(name=name, daemon=True)
        self.broker, self.work, self.rejects, self.dies_after = broker, work, rejects, dies_after
        self.stopping, self.count, self.returned = threading.Event(), 0, set()

    def run(self):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.broker.port, heartbeat=0))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume("orders", self.handle)
        while not self.stopping.is_set():
            connection.process_data_events(0.05)
            if self.dies_after is not None and self.count >= self.dies_after:
                with self.work.lock:        # From now on its orders are anyone's.
                    for customer in [c for c, holder in self.work.holders.items() if holder == self.name]:
                        del self.work.holders[customer]
                connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)
                with contextlib.suppress(pika.exceptions.AMQPConnectionError):
                    while True:         # pika notices, and closes what it has open.
                        connection.process_data_events(1)
                return
        connection.close()

    def handle(self, channel, method, properties, body):
        customer, number = properties.headers["customer"], int(body)
        if self.dies_after is not None and self.count >= self.dies_after:
            return
        self.count += 1
        self.work.begin(customer, number, self.name)
        if self.rejects and self.count % 3 == 0 and (customer, number) not in self.returned:
            self.returned.add((customer, number))
            self.work.end(customer, number, self.name, settled=False)
            channel.basic_nack(method.delivery_tag)
        else:
            self.work.end(customer, number, self.name, settled=True)
            channel.basic_ack(method.delivery_tag)


@pytest.fixture
def orders(broker):
    channel = connect(broker).channel()
    channel.queue_declare("orders", durable=True, arguments={
        "x-message-group": "exclusive", "x-message-group-header": "customer", "x-order-journal": True})
    channel.confirm_delivery()
    yield channel
    close_all()


def publish(channel, customers, numbers):
    for number in numbers:
        for customer in customers:
            channel.basic_publish("", "orders", b"%d" % number, pika.BasicProperties(
                delivery_mode=2, headers={"customer": customer}))


def test_each_customers_orders_are_done_in_order_by_ten_workers_of_which_one_dies_and_one_rejects(broker, orders):
    customers = [f"customer-{n}" for n in range(CUSTOMERS)]
    publish(orders, customers, range(ORDERS))
    assert orders.queue_declare("orders", passive=True).method.message_count == CUSTOMERS * ORDERS
    work = Work()
    workers = [Worker(broker, work, f"worker-{n}", rejects=n == 1, dies_after=20 if n == 0 else None)
               for n in range(10)]
    for worker in workers:
        worker.start()
    assert work.over.wait(4 * SECONDS)
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.join(30)
    assert work.faults == []
    assert work.settled == {customer: list(range(ORDERS)) for customer in customers}
    assert workers[1].returned
    eventually(lambda: orders.queue_declare("orders", passive=True).method.message_count == 0)
    close_all()
    broker.stop()
    (queue,) = audit(open_source(str(broker.directory)), Options(group_header="customer"))
    verdicts = {row["audit"]: row["verdict"] for row in queue.audits}
    assert (verdicts["group_fifo"], verdicts["group_order"], verdicts["group_owner"]) == ("held", "held", "held")
    assert not {"fifo", "returned_first"} & verdicts.keys()
    assert "violated" not in verdicts.values()
    broker.start()


def test_brokerctl_shows_which_group_waits_and_why_and_releases_it(broker, orders, capsys):
    publish(orders, ["a", "b"], range(2))

    def ctl(*arguments):
        status = brokerctl.run(["-D", str(broker.directory), *arguments, "--json"])
        out, err = capsys.readouterr()
        assert (status, err) == (0, "")
        return json.loads(out)

    assert ctl("group", "park", "orders", "a")["changed"]
    broker.restart(kill=True)
    channel = connect(broker).channel()
    got = []
    channel.basic_consume("orders", lambda _, method, properties, body: got.append(
        (properties.headers["customer"], body, method.delivery_tag)))
    while not got:
        channel.connection.process_data_events(1)
    assert got == [("b", b"0", 1)]
    shown = {one["group"]: one for one in ctl("group", "list", "orders")["items"]}
    assert (shown["a"]["state"], shown["b"]["state"]) == ("parked", "locked")
    assert "'group release' lets it go on" in shown["a"]["why"]
    assert ctl("ordering", "orders")["guarantee"] == "fifo-per-group"
    assert ctl("group", "release", "orders", "a")["changed"]
    while len(got) < 2:
        channel.connection.process_data_events(1)
    assert got[1] == ("a", b"0", 2)


@pytest.mark.parametrize("way", ["kept by the plane", "taken by the session"])
def test_a_transaction_tells_of_a_mandatory_message_without_a_group_before_it_ends_the_channel(broker, way):
    copies = {"CC": ["nowhere"]} if way == "taken by the session" else {}
    with Peer(broker.port).open() as peer:
        peer.declare({"x-message-group": "exclusive", "x-group-default": "reject"}, "strict", durable=True)
        assert peer.ask(methods.TxSelect()) == methods.TxSelectOk()
        peer.send(publish_octets("strict", b"1", mandatory=True, headers=copies),
                  publish_octets("strict", b"2", mandatory=True, headers={**copies, "group-id": "a"}),
                  publish_octets("strict", b"3", headers=copies), methods.TxCommit())
        assert peer.read() == methods.BasicReturn(
            reply_code=312, reply_text="NO_ROUTE: no message group", exchange="", routing_key="strict")
        assert peer.message()[1] == b"1"
        assert peer.channel_close() == (406, "PRECONDITION_FAILED - partial tx completion")
        assert peer.bodies("strict") == [b"2"]
        peer.ask(methods.QueueDelete(queue="strict"))


@pytest.mark.parametrize(("arguments", "text"), [
    ({"x-message-group": "some"}, "invalid arg 'x-message-group' for queue 'q' in vhost '/': \"'some' is "
                                  "not off, exclusive or sticky\""),
    ({"x-message-group": "sticky", "x-single-active-consumer": True},
     "message groups and x-single-active-consumer exclude each other"),
    ({"x-message-group": "exclusive", "x-group-max-inflight": 0}, "{value_zero,0}"),
])
def test_bad_arguments_are_refused_by_name(broker, arguments, text):
    channel = connect(broker).channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("q", arguments=arguments)
    assert caught.value.reply_code == 406
    assert text in caught.value.reply_text
    close_all()

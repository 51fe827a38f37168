"""Every pair of the features that take part in a publish, in one publish: as it is, with tx, confirm and mandatory.

Two equal messages are published to the exchange "x" with the key "k".  ``Rule`` says in plain words what becomes of
them, one message after the other; a whole node in this process, with a client and a clock worked by hand, must agree.
"""

from itertools import combinations

import pytest
from tests.session.harness import Client
from tests.vhost import stand_in

from brokerd.auth import Permissions, Users
from brokerd.config import Config
from brokerd.node import Node
from brokerd.server.values import limits_of, settings_of
from brokerd.store.data_dir import DataDir
from brokerd.store.disk import Disk
from brokerd.vhost import firehose
from brokerd.vhost.direct_reply import PREFIX, REPLY_TO
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import PERSISTENT, Properties, decode_header, encode_header

BY_QUEUE = "duplicates by queue"
BY_EXCHANGE = "duplicates by exchange"
DELAY = "delay"
FIREHOSE = "firehose"
REQUEST = "request"            # reply-to is the pseudo-queue of direct replies
KEEPER = "keeper"              # x is a recent-history exchange
REFUSED = "refused"            # q takes nothing: what it refuses goes to its dead-letter exchange
ALTERNATE = "alternate"        # x has no binding to q: its alternate exchange has
COPIES = "copies"              # by CC and BCC, to queues bound to x
UNBOUND = "unbound"            # nothing is bound to q's key
FEATURES = (BY_QUEUE, BY_EXCHANGE, DELAY, FIREHOSE, REQUEST, KEEPER, REFUSED, ALTERNATE, COPIES, UNBOUND)
PAIRS = [(), *combinations(FEATURES, 1), *combinations(FEATURES, 2)]
MODES = ("plain", "confirm", "tx")
ROOM = "amq.delayed.x"
BODIES = (b"first", b"second")


class Rule:
    """What becomes of the messages, by the words of the documentation."""

    def __init__(self, features, mode, mandatory):
        self.features, self.mode, self.mandatory = set(features), mode, mandatory
        self.stored = {name: [] for name in ("q", "cc", "bcc", "dead")}
        self.kept, self.shown, self.said = [], [], []
        self.known = {"x": False, "q": False}
        waiting = []
        for body in BODIES:
            if BY_EXCHANGE in self.features and self.known["x"]:
                self.said.append("ack")  # A duplicate is confirmed, and nobody sees it.
            elif DELAY in self.features:
                self.known["x"] = True
                self.show(body, [ROOM])
                self.said.append("ack")
                waiting.append(body)
            else:
                self.route(body)
        for body in waiting:  # They are due: nobody waits for an answer any more.
            self.arrive(body, self.targets())
        if mode == "tx":  # One answer for all.
            refused = "nack" in self.said
            self.said = [said for said in self.said if said == "returned"] + ["refused" if refused else "committed"]
        elif mode == "plain":
            self.said = [said for said in self.said if said == "returned"]

    def targets(self):
        """By the key and those of CC and BCC; an alternate exchange has its turn where there is no binding."""
        found = []
        if not self.features & {UNBOUND, ALTERNATE}:
            found.append("q")
        if COPIES in self.features:
            found += ["cc", "bcc"]
        if not found and ALTERNATE in self.features and UNBOUND not in self.features:
            found.append("q")
        return found

    def route(self, body):
        targets = self.targets()
        refused = self.arrive(body, targets, shown=True)
        if self.mandatory and not targets:
            self.said.append("returned")
        self.said.append("nack" if refused else "ack")

    def arrive(self, body, targets, *, shown=False):
        """A queue gets no message that it knows; whether one refused it."""
        new = [name for name in targets if not (name == "q" and BY_QUEUE in self.features and self.known["q"])]
        if shown:
            self.show(body, new)
        refused = REFUSED in self.features and "q" in new
        took = [name for name in new if not (name == "q" and refused)]
        for name in took:
            self.stored[name].append(body)
            self.known["q"] |= name == "q"
        if refused:
            self.stored["dead"].append(body)
        if KEEPER in self.features:
            self.kept.append(body)
        # An exchange learns the key of what is anywhere: in a queue, or, without one, with whom keeps it.
        self.known["x"] |= bool(took) or (not new and (len(new) < len(targets) or KEEPER in self.features))
        return refused

    def show(self, body, queues):
        if FIREHOSE in self.features:
            self.shown.append((body, queues))


class Quick(Disk):
    """Syncs nothing: the power stays on."""

    def fsync(self, fd, path):
        pass

    fdatasync = syncfs = fsync


class World:
    """A node, a client, and the topology that the features ask for."""

    def __init__(self, directory, features):
        self.features = set(features)
        self.clock = stand_in.Clock()
        self.clock.epoch_ns = self.clock
        self.clock.monotonic = lambda: self.clock.ns / 1e9
        self.clock.monotonic_ns = self.clock
        disk = Quick()
        config = Config(data_dir=str(directory), free_disk_min_octets=0, default_user_only_loopback=False)
        self.node = Node(
            settings_of(config), limits_of(config), clock=self.clock, disk=disk, data=DataDir(config.data_dir, disk),
            users=Users(config.data_dir, disk, "guest", "guest"),
            permissions=Permissions(config.data_dir, disk, "guest"), later=lambda callback: callback(), submit=at_once,
            submit_slow=at_once, sync_failed=pytest.fail, call_at=self.clock.call_at)
        self.node.core.clock = self.clock
        self.node.open_vhosts()
        self.vhost = self.node.vhosts["/"]
        self.client = Client(self.node).open()
        self.declare()

    def declare(self):
        arguments = {}
        if BY_QUEUE in self.features:
            arguments["x-message-deduplication"] = True
        if REFUSED in self.features:
            arguments |= {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "dlx"}
        for name in ("q", "cc", "bcc", "dead", "shown"):
            self.client.ask(methods.QueueDeclare(queue=name, durable=True, arguments=arguments if name == "q" else {}))
        for name in ("dlx", "other"):
            self.client.ask(methods.ExchangeDeclare(exchange=name, type="fanout", durable=True))
        self.bind("dead", "dlx")
        self.bind("shown", firehose.EXCHANGE, "publish.#")
        self.client.ask(methods.ExchangeDeclare(
            exchange="x", type="x-recent-history" if KEEPER in self.features else "direct", durable=True,
            arguments=self.exchange_arguments()))
        if UNBOUND not in self.features:
            self.bind("q", "other" if ALTERNATE in self.features else "x", "k")
        if COPIES in self.features:
            self.bind("cc", "x", "cc")
            self.bind("bcc", "x", "bcc")
        if FIREHOSE in self.features:
            self.vhost.firehose.switch(True)
        if REQUEST in self.features:
            self.client.ask(methods.BasicConsume(queue=REPLY_TO, no_ack=True))

    def exchange_arguments(self):
        arguments = {}
        if DELAY in self.features:
            arguments["x-delayed-exchange"] = True
        if BY_EXCHANGE in self.features:
            arguments["x-message-deduplication"] = True
        if ALTERNATE in self.features:
            arguments["alternate-exchange"] = "other"
        return arguments

    def bind(self, queue, exchange, key=""):
        self.client.ask(methods.QueueBind(queue=queue, exchange=exchange, routing_key=key))

    def properties(self):
        headers = {"x-deduplication-header": "one key"}
        if DELAY in self.features:
            headers["x-delay"] = 1000
        if COPIES in self.features:
            headers |= {"CC": ["cc"], "BCC": ["bcc"]}
        reply_to = REPLY_TO if REQUEST in self.features else None
        return Properties(headers=headers, delivery_mode=PERSISTENT, reply_to=reply_to)

    def publish(self, mode, mandatory, exchange="x", key="k", properties=None):
        """What the client is told of both messages: answered, returned, ack, nack, committed, refused."""
        properties = properties or self.properties()
        if mode != "plain":
            self.client.ask(methods.ConfirmSelect() if mode == "confirm" else methods.TxSelect())
        said = []
        for body in BODIES:
            method = methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
            header = header_frame(1, encode_header(len(body), properties))
            said += self.client.raw(method.frame(1) + header + body_frames(1, body, 4096))
        if mode == "tx":
            said += self.client.send((1, methods.TxCommit()))
        self.clock.advance(20_000)
        self.node.core.turn()
        assert self.client.read() == []
        return [SAID[type(frame[1])] for frame in said if isinstance(frame, tuple)]

    def messages(self, name):
        """(body, properties) of what is in a queue."""
        rows = self.vhost.queues[name].browse(0, 100)
        return [(row[6], decode_header(b"\0\x3c" + bytes(10) + row[5])[1]) for row in rows]

    def bodies(self, name):
        return [body for body, _ in self.messages(name)]

    def kept(self):
        """What somebody who comes late gets of the exchange."""
        self.vhost.add_queue("late", durable=False, auto_delete=False, arguments={})
        self.vhost.bind(self.vhost.exchanges["x"], self.vhost.queues["late"], "no key", {})
        return self.bodies("late")

    def close(self):
        self.node.upkeep.close()
        self.node.close()


SAID = {
    methods.BasicDeliver: "answered", methods.BasicReturn: "returned", methods.BasicAck: "ack",
    methods.BasicNack: "nack", methods.TxCommitOk: "committed", methods.ChannelClose: "refused",
}


def at_once(work, done):
    work()
    done(None)


@pytest.fixture
def world(tmp_path, request):
    worlds = []

    def make(features):
        worlds.append(World(tmp_path, features))
        return worlds[-1]

    yield make
    for each in worlds:
        each.close()


@pytest.mark.parametrize("mandatory", [False, True], ids=["", "mandatory"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("features", PAIRS, ids=" and ".join)
def test_two_features_in_one_publish_do_what_each_does(world, features, mode, mandatory):
    rule, here = Rule(features, mode, mandatory), world(features)
    assert here.publish(mode, mandatory) == rule.said
    assert {name: here.bodies(name) for name in rule.stored} == rule.stored
    assert [(body, properties.headers["routed_queues"]) for body, properties in here.messages("shown")] == rule.shown
    if KEEPER in features:
        assert here.kept() == rule.kept
    for name in rule.stored:
        for _, properties in here.messages(name):
            assert "BCC" not in properties.headers
            assert (properties.reply_to or "").startswith(PREFIX if REQUEST in features else "")


@pytest.mark.parametrize("mandatory", [False, True], ids=["", "mandatory"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("feature", ["nothing", FIREHOSE, COPIES, BY_QUEUE, REFUSED])
def test_an_answer_reaches_its_requester_whatever_else_is_done_with_it(world, feature, mode, mandatory):
    """Answers go through the default exchange; with CC they go to the queue "q" too."""
    here = world((feature, REQUEST))
    name = here.vhost.replies.rewrite(here.client.connection.channels[1], Properties(reply_to=REPLY_TO)).reply_to
    to_q = feature in (COPIES, BY_QUEUE, REFUSED)
    headers = {"x-deduplication-header": "one key"} | ({"CC": ["q"]} if to_q else {})
    said = here.publish(mode, mandatory, "", name, Properties(headers=headers, delivery_mode=PERSISTENT))
    word = "nack" if feature == REFUSED else "ack"
    assert said == {
        "plain": ["answered"] * 2, "confirm": ["answered", word] * 2,
        "tx": ["answered", "answered", "refused" if feature == REFUSED else "committed"],
    }[mode]
    assert here.bodies("q") == {COPIES: list(BODIES), BY_QUEUE: [BODIES[0]]}.get(feature, [])
    assert here.bodies("dead") == (list(BODIES) if feature == REFUSED else [])
    assert here.bodies("shown") == (list(BODIES) if feature == FIREHOSE else [])

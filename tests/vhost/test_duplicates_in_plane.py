"""Duplicates that the data plane leaves out: the same that the control plane would, whatever is published how.

Two vhosts are given the same octets.  In one the control plane looks for all duplicates (``Check``), in the other the
data plane does wherever it can.
"""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vhost.test_duplicates import DEDUPLICATES, Machine, key_files

from brokerd.store.disk import Disk
from brokerd.store.format import KEY_ROW, NOT_LASTING
from brokerd.store.key_files import SECRET_FILE, read
from brokerd.vhost.features import DuplicatesOnDemand
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header
from brokerd.wire.values import Timestamp

QUEUES = ("q", "other", "id", "small", "plain", "wide0", "wide9", "grouped", "content", "waiting", "latest")


class ByControlPlane(DuplicatesOnDemand):
    """Leaves no publish to the data plane."""

    def is_for_plane(self, exchange, queues, properties):
        return False


class Pair:
    """Two machines to which the same happens."""

    def __init__(self, directory):
        self.machines = []
        for kind in (DuplicatesOnDemand, ByControlPlane):
            (directory / kind.__name__).mkdir()
            machine = Machine(directory / kind.__name__, kind)
            self.machines.append(machine)
            machine.queue()
            machine.queue("id", deduplication_header="id", cache_size=3)
            machine.queue("small", cache_size=2, max_length=3, overflow="reject-publish")
            machine.queue("timed", cache_ttl=50)
            machine.queue("grouped", deduplication_scope="group")
            machine.queue("content", deduplication_content=True, deduplication_action="nack", cache_size=10)
            machine.queue("waiting", deduplication_scope="waiting", deduplication_action="dead-letter",
                          dead_letter_exchange="", dead_letter_routing_key="plain")
            machine.queue("latest", deduplication_scope="waiting", deduplication_action="replace")
            machine.exchange(cache_size=5)                                      # x: to "other"
            machine.exchange("y", "q", deduplication_header="id", cache_ttl=50)  # y: queue and exchange have rules
            machine.exchange("z", "plain", durable=False)
            bind(machine, "wide", [f"wide{n}" for n in range(10)])
            bind(machine, "x", ["small"])
            bind(machine, "wide2", ["grouped", "content", "waiting", "latest", "plain"])
            headers = machine.vhost.add_exchange("h", "headers", durable=True, auto_delete=False, internal=False,
                                                 arguments=DEDUPLICATES)
            for name, asked in (("other", {"x-match": "any", "id": "a"}), ("id", {"id": 1}), ("q", {"x-match": "all"})):
                machine.vhost.bind(headers, machine.vhost.queues[name], "", asked)

            headers = machine.vhost.add_exchange("g", "headers", durable=True, auto_delete=False, internal=False,
                                                 arguments={})
            for name, key in (("plain", "a"), ("id", 1), ("other", 2), ("plain", "b")):
                machine.vhost.bind(headers, machine.vhost.queues[name], "", {"id": key})

    def each(self, do):
        """What both answer; they must agree."""
        answers = [do(machine) for machine in self.machines]
        assert answers[0] == answers[1]
        return answers[0]

    def compare(self):
        self.each(lambda machine: {name: (queue.ready, queue.duplicates)
                                   for name, queue in machine.vhost.queues.items()})
        self.each(lambda machine: {name: known.duplicates for name, known in exchanges(machine).items()})
        self.each(lambda machine: {name: (exchange.tally.published, exchange.tally.routed)
                                   for name, exchange in machine.vhost.exchanges.items()})
        self.each(lambda machine: [log_name(log) for log in dict.fromkeys(machine.followed)])
        self.each(rows)


def bind(machine, exchange, queues):
    """Bind queues with a rule to a fanout exchange, made where it is not there."""
    if exchange not in machine.vhost.exchanges:
        machine.vhost.add_exchange(exchange, "fanout", durable=True, auto_delete=False, internal=False, arguments={})
    for name in queues:
        queue = machine.vhost.queues.get(name) or machine.queue(name)
        machine.vhost.bind(machine.vhost.exchanges[exchange], queue, "", {})


def exchanges(machine):
    return machine.vhost.duplicates.get().exchanges


def log_name(log):
    return Path(log.path(0)).name


def rows(machine):
    """Of the logs of all exchanges, in their order: whether a sync covers the row, and when it expires."""
    found = {}
    for name in key_files(machine):
        if name != SECRET_FILE:
            octets = read(f"{machine.directory}/{name}", Disk(), log=True).rows
            found.setdefault(name.rpartition(".")[0], []).extend(
                (order & ~NOT_LASTING, bool(order & NOT_LASTING), expires)
                for order, _, expires in KEY_ROW.iter_unpack(octets))
    return found


keys = st.sampled_from([None, "a", "b", "c", "a" * 200, 1, 2, -1, True, 1.5, Timestamp(1), b"a", [1]])
publishes = st.fixed_dictionaries({
    "to": st.sampled_from([("", "q"), ("", "id"), ("", "small"), ("", "timed"), ("", "gone"),
                           ("", "grouped"), ("", "content"), ("", "waiting"), ("", "latest"), ("wide2", ""),
                           ("x", ""), ("y", ""),
                           ("z", ""), ("wide", ""), ("h", ""), ("g", "")]),
    "headers": st.fixed_dictionaries({}, optional={
        "group-id": st.sampled_from(["a", "b", 1, 1.5]), "x-deduplication-header": keys,
        "MessageDeduplicationId": keys, "id": keys,
        "x-cache-ttl": st.sampled_from([0, 30, 200, "30", True, -1]), "CC": st.just(["q"]), "BCC": st.just(["id"])}),
    "mode": st.sampled_from([1, 2]),
    "body": st.sampled_from([b"m", b"n"]),
    "bits": st.sampled_from([{}, {}, {"mandatory": True}, {"immediate": True}]),
    "expiration": st.sampled_from([None, None, None, "1000"]),
})
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(publishes, min_size=1, max_size=8)),
    st.tuples(st.just("publish"), st.lists(publishes, min_size=1, max_size=8)),
    st.tuples(st.just("advance"), st.sampled_from([1, 29, 50, 200])),
    st.tuples(st.just("get"), st.sampled_from(QUEUES)),
    st.tuples(st.just("kill"), st.booleans()),
    st.tuples(st.just("unbind"), st.just(None)),
)


def octets_of(publish):
    exchange, routing_key = publish["to"]
    header = encode_header(1, Properties(headers=publish["headers"] or None, delivery_mode=publish["mode"],
                                         expiration=publish["expiration"]))
    method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, **publish["bits"])
    return method.frame(1) + header_frame(1, header) + body_frames(1, publish["body"], 4096)


def perform(machine, step, argument):
    """Do one step; returns what the client was told."""
    if step == "publish":
        said = machine.client.raw(b"".join(map(octets_of, argument)))
        machine.node.core.turn()
        return said
    if step == "advance":
        machine.clock.advance(argument)
        return None
    if step == "get":
        return machine.client.send((1, methods.BasicGet(queue=argument, no_ack=True)))
    if step == "unbind":
        exchange = machine.vhost.exchanges["x"]
        for binding in list(exchange.bindings()):
            machine.vhost.unbind(exchange, binding.destination, binding.routing_key, {})
        return None
    return None


@settings(max_examples=60)
@given(confirms=st.booleans(), story=st.lists(steps, min_size=1, max_size=12))
def test_the_data_plane_leaves_out_what_the_control_plane_would(confirms, story):
    directory = Path(tempfile.mkdtemp())
    try:
        pair = Pair(directory)
        if confirms:
            pair.each(lambda machine: machine.client.send((1, methods.ConfirmSelect())))
        for step, argument in story:
            if step == "kill":
                for machine in pair.machines:
                    machine.kill(suspect=argument)
                if confirms:
                    pair.each(lambda machine: machine.client.send((1, methods.ConfirmSelect())))
            else:
                pair.each(lambda machine: perform(machine, step, argument))  # noqa: B023
            pair.compare()
    finally:
        shutil.rmtree(directory)

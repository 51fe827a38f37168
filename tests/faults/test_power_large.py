"""Large messages over power cuts: a confirmed or committed one is whole in each queue, and no other is in part."""

from random import Random

import pytest
from tests.faults.power import Machine, PowerCut, PowerlessDisk
from tests.in_memory import in_memory  # noqa: F401 - its folders
from tests.plane import harness

from brokerd.wire import methods

OCTETS = 4 << 20
QUEUES = ("one", "two")


def body_of(number):
    return number.to_bytes(4) + Random(number).randbytes(1000) + bytes(OCTETS)


def count_answers(client, way):
    """How many messages the broker has promised in what it has written."""
    count = 0
    for kind, _, payload in client.frames():
        if kind == 1 and way == "confirms":
            assert payload[:4] == b"\0\x3c\0\x50", payload
            count = int.from_bytes(payload[4:12])       # the number up to which it confirms
        elif kind == 1:
            assert payload == b"\0\x5a\0\x15", payload
            count += 1
    return count


def work(machine, disk, way, random):
    """Publish until the power goes.  Returns how many messages were promised."""
    client = machine.client()
    client.tell(methods.ChannelOpen().frame(1))
    for name in QUEUES:
        client.tell(methods.QueueDeclare(queue=name, durable=True).frame(1)
                    + methods.QueueBind(queue=name, exchange="amq.fanout").frame(1))
    machine.sync()
    client.tell((methods.ConfirmSelect() if way == "confirms" else methods.TxSelect()).frame(1))
    client.frames()
    promised = 0
    disk.verbs_left = random.randrange(1, 25)
    try:
        for number in range(3):
            octets = harness.publish(1, body_of(number), b"", exchange=b"amq.fanout", persistent=True)
            for part in (octets[:len(octets) // 2], octets[len(octets) // 2:]):
                client.tell(part)
                if random.random() < 0.5:
                    disk.glimpse()
            if way == "commits":
                client.tell(methods.TxCommit().frame(1))
            machine.pump()
            if random.random() < 0.7:
                machine.sync()
            found = count_answers(client, way)
            promised = max(promised, found) if way == "confirms" else promised + found
    except PowerCut:
        found = count_answers(client, way)
        promised = max(promised, found) if way == "confirms" else promised + found
    disk.verbs_left = None
    return promised


@pytest.mark.parametrize("way", ["confirms", "commits"])
@pytest.mark.parametrize("seed", range(6))
def test_large_messages_that_were_promised_are_whole_after_a_power_cut(tmp_path, way, seed):
    random = Random(f"{way} {seed}")
    disk = PowerlessDisk(str(tmp_path / "before"))
    machine = Machine(str(tmp_path / "before"), "boot-1", disk)
    promised = work(machine, disk, way, random)
    machine.vanish()
    disk.lose_power(str(tmp_path / "after"), random)
    disk.release()
    machine.bury()
    after = Machine(str(tmp_path / "after"), "boot-2", PowerlessDisk(str(tmp_path / "after")))
    assert not list((tmp_path / "after" / "spare").glob("large.*"))
    for name in QUEUES:
        queue = after.node.vhosts["/"].queues[name]
        found = [int.from_bytes(one[:4]) for one in bodies(after, queue.name)]
        assert found[:promised] == list(range(promised))
        assert found == sorted(set(found))
    after.stop()


def bodies(machine, name):
    """The messages of a queue, each of which is whole."""
    client = machine.client()
    client.tell(methods.ChannelOpen().frame(1))
    client.frames()
    found = []
    while True:
        client.tell(methods.BasicGet(queue=name, no_ack=True).frame(1))
        octets = b"".join(payload for kind, _, payload in client.frames() if kind == 3)
        if not octets:
            return found
        assert octets == body_of(int.from_bytes(octets[:4]))
        found.append(octets)

"""Power is cut while an operator acts on message groups.

A redrive, at each of its steps: the letters are all at their places, or all where they were.  Parked, released and
skipped groups stay so once that was answered.
"""

import os

import pytest
from tests.faults.power import Machine, PowerCut, PowerlessDisk
from tests.faults.test_power import Story
from tests.in_memory import in_memory  # noqa: F401 - its folders

from brokerd.operations import table
from brokerd.operations.jobs import Running
from brokerd.operations.rows import LOCAL
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header

MESSAGES, DEAD = 8, 4
GET_OK = methods.BasicGetOk.INDEX.to_bytes(4)


def ask(machine, verb, **fields):
    """The answer of an operation, which ends before the power goes."""
    row, outcome, node = table.find(verb), [], machine.node
    request = table.adapter(row.request).validate_python(fields)
    Running(row.function(node, LOCAL, request), submit=node.submit_slow, later=node.later,
            progress=lambda table: None, done=lambda answer, error: outcome.append((answer, error)))
    while not outcome:
        machine.pump()
        machine.disk.glimpse()
        if machine.jobs:
            work, done = machine.jobs.popleft()
            work()
            done(None)
    ((answer, error),) = outcome
    assert error is None
    return answer


class Redriven(Story):
    """A queue with two groups, of whose messages the first are dead; then a redrive, in which the power goes."""

    verbs = None        # of the disk, until the power goes
    finished = False    # it was answered before that

    def tell(self):
        self.fill()
        self.start_whole()
        self.finished = self.redrive()
        self.disk.verbs_left = None
        self.lose_power()
        self.start()
        decided = self.look()
        self.stop()
        return decided

    def start_whole(self):
        self.disk = PowerlessDisk(self.directory)
        self.machine = Machine(self.directory, "boot", self.disk)

    def fill(self):
        machine = Machine(self.directory, "boot", PowerlessDisk(self.directory))
        client = machine.client()
        groups = {"x-message-group": "exclusive", "x-message-group-header": "customer", "x-dead-letter-exchange": "",
                  "x-dead-letter-routing-key": "dead"}
        client.tell(methods.ChannelOpen().frame(1) + methods.QueueDeclare(queue="dead", durable=True).frame(1)
                    + methods.QueueDeclare(queue="work", durable=True, arguments=groups).frame(1))
        for number in range(MESSAGES):
            header = encode_header(1, Properties(headers={"customer": f"c{number % 2}"}, delivery_mode=2))
            client.tell(methods.BasicPublish(exchange="", routing_key="work").frame(1) + header_frame(1, header)
                        + body_frames(1, b"%d" % number, 4096))
        for number in range(DEAD):
            client.tell(methods.BasicGet(queue="work").frame(1)
                        + methods.BasicReject(delivery_tag=number + 1, requeue=False).frame(1))
            machine.sync()
        machine.stop()
        machine.disk.release()

    def redrive(self):
        """Whether it was answered before the power went."""
        self.disk.verbs_left = self.verbs
        try:
            answer = ask(self.machine, "message redrive", queue="dead")
        except PowerCut:
            return False
        assert (answer["messages"], answer["left"]) == (DEAD, 0)
        return True

    def worked_off(self, client, queue):
        """What the queue has, one after the other."""
        found, tag = [], 0
        while True:
            client.tell(methods.BasicGet(queue=queue).frame(1))
            frames = client.frames()
            if frames[0][2][:4] != GET_OK:
                return found
            found.append(int(frames[2][2]))
            tag = int.from_bytes(frames[0][2][4:12])
            client.tell(methods.BasicAck(delivery_tag=tag).frame(1))

    def look(self):
        client = self.machine.client()
        client.tell(methods.ChannelOpen().frame(1))
        client.frames()
        dead, work = self.worked_off(client, "dead"), self.worked_off(client, "work")
        assert sorted(dead) in ([], list(range(DEAD)))
        decided = not dead
        assert decided or not self.finished
        for group in range(2):
            assert [n for n in work if n % 2 == group] == [n for n in range(group, MESSAGES, 2) if decided or n >= DEAD]
        assert not [name for _, _, names in os.walk(self.directory) for name in names if name.startswith("redrive.")]
        return decided


@pytest.mark.parametrize("seed", range(2))
def test_a_redrive_is_whole_after_a_loss_of_power_or_it_never_was(tmp_path, seed):
    outcomes = set()
    for verbs in range(60):
        directory = tmp_path / str(verbs)
        directory.mkdir()
        story = Redriven(directory, seed * 1000 + verbs)
        story.verbs = verbs
        try:
            outcomes.add(story.tell())
            story.end()
        except BaseException as error:
            error.add_note(f"power goes after {verbs} verbs, data in {story.directory}")
            raise
        if story.finished:
            break
    assert story.finished
    assert outcomes == {True, False}


class Acting(Redriven):
    """An operator parks, releases or skips, is answered, and the power goes."""

    acts = ()

    def redrive(self):
        for act in self.acts:
            assert ask(self.machine, f"group {act}", queue="work", group="c0")["changed"]

    def look(self):
        client = self.machine.client()
        client.tell(methods.ChannelOpen().frame(1))
        client.frames()
        return self.worked_off(client, "work")


@pytest.mark.parametrize(("acts", "left"), [
    (("park",), [5, 7]), (("park", "release"), [4, 5, 6, 7]), (("skip",), [5, 6, 7]), (("park", "skip"), [5, 7])])
def test_what_an_operator_was_told_outlives_a_loss_of_power(tmp_path, acts, left):
    for seed in range(5):
        directory = tmp_path / str(seed)
        directory.mkdir()
        story = Acting(directory, seed)
        story.acts = acts
        assert sorted(story.tell()) == left, f"seed {seed}"
        story.end()

"""A node with one vhost of small segments over the real data plane; the loop and the threads are worked by hand."""

import json
from types import SimpleNamespace

from tests.session.harness import Client, Node

from brokerd import plane
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Encoded, Wait
from brokerd.store.disk import Disk
from brokerd.store.recovery import recover
from brokerd.upkeep.upkeep import Upkeep
from brokerd.vhost.folder import load_vhost
from brokerd.wire import methods
from brokerd.wire.frames import body_frames, header_frame

SEGMENT_OCTETS = 1 << 16
BODY_OCTETS = 1000


class Thread:
    """Does what was submitted when told."""

    def __init__(self):
        self.jobs = []

    def submit(self, work, done):
        self.jobs.append((work, done))

    def run(self):
        """All that waits, and what comes of it: its work, then the loop's part."""
        while self.jobs:
            work, done = self.jobs.pop(0)
            error = None
            try:
                work()
            except Exception as caught:
                error = caught
            done(error)


class Place:
    """Vhost "/" in ``path``, and one client."""

    def __init__(self, path):
        path.mkdir(exist_ok=True)
        self.path = path
        self.thread = Thread()
        self.node = Node(path, free_disk_min_octets=0)
        self.node.disk = Disk()
        self.node.data = SimpleNamespace(path=str(path), identity="brokerd@here-0", sync=lambda: None,
                                         next_connection_number=iter(range(1, 100)).__next__)
        self.node.core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print,
                                    damaged=print, segment_octets=SEGMENT_OCTETS)
        vhosts = self.node.vhosts = {}
        self.node.upkeep = Upkeep(vhosts, self.node.core, self.node.disk, str(path), self.thread.submit,
                                  now=self.node.clock.epoch_ns)
        self.vhost = vhosts["/"] = self.node.vhost = load_vhost(
            "/", str(path), self.node.core, self.node.disk, self.node.upkeep.garbage, suspect=False, report=print,
            recover=lambda queue: recover(queue, self.node.disk, False, print), listen=self.node.upkeep.listen,
            remove_files=self.node.upkeep.remove_files)
        self.node.upkeep.review_journals(self.vhost)
        self.client = Client(self.node).open()
        self.vhost.accesses["guest"] = self.client.connection.access

    def queue(self, name="q", durable=True, **arguments):
        arguments = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.vhost.queues.get(name) or self.vhost.add_queue(
            name, durable=durable, auto_delete=False, arguments=arguments)

    def publish(self, count=1, key="q", octets=BODY_OCTETS, priority=None, exchange=""):
        flags = b"\x10\0\x02" if priority is None else b"\x18\0\x02" + bytes([priority])
        header = b"\0\x3c\0\0" + octets.to_bytes(8) + flags
        one = methods.BasicPublish(exchange=exchange, routing_key=key).frame(1) + header_frame(1, header)
        self.client.raw((one + body_frames(1, bytes(octets), 4096)) * count)

    def consume(self, prefetch=0, queue="q"):
        """Take all that comes; ``settle`` says what becomes of it."""
        self.client.send((1, methods.BasicQos(prefetch_count=prefetch)), (1, methods.BasicConsume(queue=queue)))

    def settle(self, first, last=None, requeue=False):
        """Ack the deliveries with these tags, or return them."""
        channel = self.client.connection.channels[1]
        for tag in range(first, (last or first) + 1):
            assert channel.settle(tag, False, requeue=requeue)
        self.node.core.turn()

    def tick(self):
        self.node.upkeep.tick(0)
        self.thread.run()


def work(job, between=None):
    """Run a job to its end, doing ``between(place)`` after each step, where place says what comes next; its answer.
    Its syncs end at once."""
    steps, place = job.steps(), ON_LOOP
    try:
        while True:
            said = next(steps)
            if said in (IN_THREAD, ON_LOOP):
                place = said
            if isinstance(said, Wait):
                said.begin(lambda: None)
            if between is not None:
                between(place)
    except StopIteration as end:
        return json.loads(b"".join(end.value.parts)) if isinstance(end.value, Encoded) else end.value
    finally:
        job.clean_up()

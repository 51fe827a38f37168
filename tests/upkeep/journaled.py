"""A vhost with order journals: small segments, its upkeep, one client, a clock and a thread by hand."""

import os

from tests.session.harness import Client, Node
from tests.upkeep.test_upkeep import SEGMENT_OCTETS, Place, Thread, delivered

from brokerd import plane
from brokerd.store import format as layout
from brokerd.store import side_file
from brokerd.store.recovery import recover
from brokerd.upkeep.upkeep import Upkeep
from brokerd.vhost.folder import load_vhost
from brokerd.wire import methods

JOURNAL = {"x-order-journal": True}
NEVER = 0


class Journaled(Place):
    """``now`` is the time of all that is asked here and in the data plane (ns)."""

    def __init__(self, path):
        self.now = 1_700_000_000 * 10**9
        self.archive = ""
        self.suspect = False
        super().__init__(path)

    def reopen(self):
        self.thread = Thread()
        self.node = Node(self.path)
        self.node.core = plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print,
                                    damaged=print, segment_octets=SEGMENT_OCTETS)
        self.node.core.clock = lambda: self.now
        self.vhosts = {}
        self.upkeep = Upkeep(self.vhosts, self.node.core, self.disk, str(self.path), self.thread.submit,
                             now=lambda: self.now, suspect=self.suspect)
        self.journals = self.upkeep.journals
        self.upkeep.archive = self.journals.retention.archive = self.archive
        self.vhost = self.vhosts["/"] = self.node.vhost = load_vhost(
            "/", str(self.path), self.node.core, self.disk, self.upkeep.garbage, suspect=self.suspect, report=print,
            recover=self._recover, listen=self.upkeep.listen, remove_files=self.upkeep.remove_files)
        self.upkeep.review_journals(self.vhost)
        self.client = Client(self.node).open()
        self.vhost.accesses["guest"] = self.client.connection.access

    def _recover(self, queue):
        if recover(queue, self.disk, self.suspect, print):
            self.journals.add_recovered(queue)

    def set_archive(self, path):
        self.archive = self.upkeep.archive = self.journals.retention.archive = str(path)

    def queue(self, name="q", **arguments):
        return self.vhost.queues.get(name) or self.vhost.add_queue(
            name, durable=True, auto_delete=False,
            arguments=JOURNAL | {key.replace("_", "-"): value for key, value in arguments.items()})

    def pass_on(self, first, last, key="q"):
        """Publish that many and settle them all."""
        queue = self.vhost.queues[key]
        self.publish(*range(first, last + 1), key=key)
        got = self.client.send((1, methods.BasicConsume(queue=key, consumer_tag=f"all {first}")))
        assert [number for number, _, _ in delivered(got)] == list(range(first, last + 1))
        self.client.send((1, methods.BasicAck(delivery_tag=0, multiple=True)))
        self.client.send((1, methods.BasicCancel(consumer_tag=f"all {first}")))
        return queue

    def second(self, count=1):
        """A tick, and all that the thread has to do because of it."""
        for _ in range(count):
            self.now += 10**9
            self.upkeep.tick(NEVER)
            while self.thread.jobs:
                self.thread.run()

    def lines(self, queue, what=None):
        found = side_file.read(os.path.join(queue.directory, layout.SIDE_FILE), self.disk)
        return [line for line in found if what in (None, line["what"])]

    def restart(self):
        """A clean stop, and a start."""
        self.upkeep.close()
        while self.thread.jobs:
            self.thread.run()
        self.close()
        self.reopen()
        return self.vhost.queues.get("q")


def kept_names(queue, level=0):
    """The files that are kept of a queue, sorted."""
    folder = os.path.join(queue.directory, layout.priority_folder(level) if level else "", layout.KEPT_FOLDER)
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def kept_numbers(queue, level=0):
    """The segments of which all three files are kept.  Their hash chains come a little later."""
    names = [name for name in kept_names(queue, level) if not name.startswith("chain.")]
    numbers = sorted({int(name.rpartition(".")[2]) for name in names})
    assert names == sorted(f"{kind}.{number:010d}" for number in numbers for kind in ("msgs", "journal", "acks"))
    return numbers

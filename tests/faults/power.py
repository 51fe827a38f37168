"""A whole broker but its sockets, in this process, over a disk that forgets; and the moment the power goes.

    machine = Machine(directory, boot="1", disk=...)     the node, as server/launch.py builds it
    client = machine.client()                            a connection that is fed octets
    machine.pump() / machine.sync()                      what the loop and the sync thread would do, when told

The disk gives every page that was not synced any content it had since, and may fail at any of its verbs.
"""

import os
from collections import deque

from tests.plane.harness import cut
from tests.session.harness import Client as SessionClient

from brokerd.auth import Permissions, Users
from brokerd.clock import Clock
from brokerd.config import Config
from brokerd.node import Node
from brokerd.server.values import limits_of, settings_of
from brokerd.store.data_dir import DataDir
from brokerd.testing.disk import ForgetfulDisk
from brokerd.wire import methods

SEGMENT_OCTETS = 1 << 15


class PowerCut(BaseException):
    """The machine stops here."""


class PowerlessDisk(ForgetfulDisk):
    """Remembers glimpses of what is not synced, and stops at the verb ``verbs_left`` says (None: never)."""

    def __init__(self, root):
        self.seen_files, self.seen_names = {}, {}       # by inode: contents, entries since the last sync
        self.verbs_left = None
        self.losing = None          # the Random of a power cut under way
        super().__init__(root)

    def glimpse(self):
        """What the page cache holds now may be what is found of a page later."""
        for directory, _, files in os.walk(self.root):
            self._hold(directory)
            names = self._names_now(directory)
            self.seen_names.setdefault(os.stat(directory).st_ino, []).append(names)
            for name in files:
                inode = names[name]
                with open(os.path.join(directory, name), "rb") as file:
                    content = file.read()
                seen = self.seen_files.setdefault(inode, [])
                if content != (seen[-1] if seen else self._files.get(inode)):
                    seen.append(content)

    def _verb(self):
        if self.verbs_left is not None:
            self.verbs_left -= 1
            if self.verbs_left < 0:
                raise PowerCut

    def _synced(self, fd, path):
        self._verb()
        super()._synced(fd, path)
        inode = os.fstat(fd).st_ino
        self.seen_files.pop(inode, None)
        self.seen_names.pop(inode, None)

    def syncfs(self, fd, path):
        self._verb()
        super().syncfs(fd, path)
        self.seen_files.clear()
        self.seen_names.clear()

    def pwrite(self, fd, octets, position):
        self._verb()
        super().pwrite(fd, octets, position)

    def rename(self, old, new):
        self._verb()
        super().rename(old, new)

    def unlink(self, path):
        self._verb()
        super().unlink(path)

    def truncate(self, fd, octets):
        self._verb()
        super().truncate(fd, octets)

    def make_directory(self, path):
        self._verb()
        super().make_directory(path)

    def lose_power(self, target, random):
        self.losing = random
        super().lose_power(target, random)

    def _names_now(self, directory):
        now = super()._names_now(directory)
        if self.losing is None:
            return now
        return self.losing.choice([*self.seen_names.get(os.stat(directory).st_ino, []), now])

    def _lose_pages(self, inode, random):
        with open(f"/proc/self/fd/{self._held[inode]}", "rb") as file:
            versions = [self._files.get(inode, b""), *self.seen_files.get(inode, []), file.read()]
        if all(version == versions[0] for version in versions):
            return versions[0]
        length = len(random.choice(versions))
        pages = []
        for at in range(0, length, 4096):
            octets = min(4096, length - at)
            pages.append(random.choice(versions)[at:at + octets].ljust(octets, b"\0"))
        return b"".join(pages)


class Machine:
    """One start of the broker.  ``log`` is what it would have logged as warnings and worse."""

    def __init__(self, directory, boot, disk=None):
        self.disk = disk or PowerlessDisk(directory)
        self.boot = boot
        self.calls, self.jobs, self.log = deque(), deque(), []
        self.clients = []
        self.data = DataDir(directory, self.disk, boot=boot)
        config = Config(data_dir=directory, segment_octets=SEGMENT_OCTETS, free_disk_min_octets=0)
        self.node = Node(settings_of(config), limits_of(config), clock=Clock(), disk=self.disk, data=self.data,
                         users=Users(directory, self.disk), permissions=Permissions(directory, self.disk),
                         later=self.calls.append, submit=self.submit, submit_slow=self.submit,
                         sync_failed=self.sync_failed)
        self.node.open_vhosts()
        self.data.end_recovery()

    def submit(self, work, done):
        self.jobs.append((work, done))

    @staticmethod
    def sync_failed(error):
        raise error

    def client(self):
        client = Client(self.node)
        client.start_with(self)
        self.clients.append(client)
        return client

    def pump(self):
        """What the loop would do until it has nothing left to do; syncs wait."""
        while self.calls:
            self.calls.popleft()()
            if len(self.calls) > 1000:
                raise AssertionError("the loop never rests")

    def sync(self):
        """All syncs that are waited for."""
        self.pump()
        while self.jobs:
            work, done = self.jobs.popleft()
            error = None
            try:
                work()
            except FileNotFoundError as caught:     # Retention was quicker than the work at a segment.
                error = caught
            done(error)
            self.pump()

    def stop(self):
        """The clean end."""
        self.sync()
        for client in self.clients:
            client.connection.detach()
        self.node.upkeep.close()
        self.sync()
        self.node.close()

    def vanish(self):
        """As after kill -9, or when the power has gone: nothing is written any more, and the lock is free."""
        self.data.abandon()

    def bury(self):
        """Give the descriptors back, once nobody looks at the files any more."""
        for vhost in self.node.vhosts.values():
            vhost.log.close()
            for queue in vhost.queues.values():
                queue.close()
        self.node = None


class Client(SessionClient):
    """A peer whose messages are read as octets: ``said`` gives frames."""

    def start_with(self, machine):
        self.machine = machine
        self.connection.loopback = True
        assert self.start() == [methods.ConnectionOpenOk()]
        self.frames()

    def frames(self):
        """(kind, channel, payload) of all that was written by now."""
        self.machine.pump()
        octets, self.transport.octets = self.transport.octets, b""
        return cut(octets)

    def tell(self, octets):
        self.feed(octets)

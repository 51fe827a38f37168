"""Many planted queues in one dump, each in a vhost of its own, so that one run of an audit judges all of them.

    Composite(dump, target)     vhost "clean" has no fault
        .plant(places, kinds)   each of these kinds at so many places of its first queue
        .edit(count, seed)      so many random edits
        .end()                  writes the manifest
"""

import hashlib
import json
import os
import shutil
from random import Random

from tests.planter.edits import QUEUES, edit
from tests.planter.folder import Tree, repair_digests
from tests.planter.kinds import KINDS, plants_of
from tests.planter.samples import with_others

# What concerns more than one queue, or the folder as a whole, cannot stand beside others.
ALONE = ("schema_of_a_later_version", "manifest_of_a_later_version")


class Composite:
    """A dump in the making; ``planted``: what stands in each vhost."""

    def __init__(self, dump, target):
        self.dump, self.target, self.room = dump, target, target.parent / f"{target.name}.one"
        self.planted = {}
        self.entries = []
        target.mkdir()
        tree = Tree(dump)
        tree.write(self.room)
        self._take(tree, "clean")

    def _take(self, tree, vhost):
        """Move the vhost that stands in ``room``, under this name."""
        (old,) = [each for each in self.room.iterdir() if each.is_dir()]
        new = self.target / hashlib.sha1(vhost.encode()).hexdigest()
        os.rename(old, new)
        (new / ".vhost").unlink()           # A second name of the dump's own file.
        (new / ".vhost").write_text(vhost)
        for queue in tree.queues.values():
            entry = json.loads(json.dumps(queue.entry).replace(old.name, new.name))
            self.entries.append(entry | {"vhost": vhost})
        shutil.rmtree(self.room)

    def plant(self, places, kinds=tuple(KINDS)):
        for kind in map(KINDS.get, kinds):
            if kind.together or kind.name in ALONE:
                continue
            name = kind.queues[0]
            trees = plants_of(kind, name, lambda name=name: Tree(self.dump, only=with_others(name)))
            for (tree, what), number in zip(trees, range(places), strict=False):
                tree.write(self.room)
                self._take(tree, f"{kind.name} {number}")
                self.planted[f"{kind.name} {number}"] = f"{what.queue}, {what.place}"

    def edit(self, count, seed):
        random = Random(seed)
        for number in range(count):
            name = random.choice(QUEUES)
            tree = Tree(self.dump, only=with_others(name))
            tree.link(self.room)
            what, new = edit(tree, name, random)
            for path, octets in new.items():
                (self.room / path).unlink()
                (self.room / path).write_bytes(octets)
            self._take(tree, f"edit {number}")
            self.planted[f"edit {number}"] = f"{name}, {what}"

    def end(self):
        head = json.loads((self.dump / "manifest.json").read_text())
        (self.target / "manifest.json").write_text(json.dumps(head | {"queues": self.entries}))
        repair_digests(self.target)
        return self.target

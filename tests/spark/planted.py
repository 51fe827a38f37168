"""Makes a data directory with a queue for each kind of fault, and some queues without faults."""

import json
import os
import shutil

from tests.audit import plant
from tests.audit.runs import VHOST, in_groups, whole
from tests.audit.writer import Level, Options, after_a_loss_of_power, simple_level, write_queue

from brokerd.store import format as layout

FOUND = 3
LIMIT = 3
LIMITED = ("delivery_limit", "limit_kept")
START = 1_780_000_000_000_000_000


def build(root):
    """Make the directory at ``root``, and return {audit: Planted}; each fault is in the queue with the audit's name."""
    clean = f"{root}.clean"
    whole(clean)
    os.makedirs(f"{root}/{VHOST}")
    shutil.copy(f"{clean}/{VHOST}/.vhost", f"{root}/{VHOST}/.vhost")
    planted = {}
    for name in ("plain", "levels", *plant.PLANTS):
        folder = f"{root}/{VHOST}/{name}"
        if name == "group_fifo":
            in_groups(root, name)
        else:
            shutil.copytree(f"{clean}/{VHOST}/{'levels' if name in ('levels', 'priority') else 'plain'}", folder)
            with open(f"{folder}/.queue", "w") as file:
                file.write(name)
        if name in LIMITED:
            _limit(folder)
        if name in plant.PLANTS:
            story = plant.Story(folder)
            planted[name] = plant.plant(story, name, FOUND)
            story.save()
    shutil.rmtree(clean)
    _others(root)
    return planted


def _limit(folder):
    with open(f"{folder}/{layout.SIDE_FILE}") as file:
        lines = [json.loads(line) for line in file]
    with open(f"{folder}/{layout.SIDE_FILE}", "w") as file:
        for line in lines:
            file.write(json.dumps(line | ({"delivery_limit": LIMIT} if line["what"] == "settings" else {})) + "\n")


def _others(root):
    """Add queues that lack something: one without a journal, one with a late journal, one that has lost a segment."""
    level = simple_level(300, start=START)
    unjournaled = Options(segment_messages=100, journal=False)
    write_queue(root, level, unjournaled, queue="unjournaled", folder="unjournaled")
    write_queue(root, level, unjournaled, queue="settled and gone", folder="gone")
    os.remove(f"{root}/vhost/gone/{layout.segment_name(2)}")
    late = Options(segment_messages=100, begun=int(level.messages["ts"][150]))
    write_queue(root, level, late, queue="journaled late", folder="late")
    for name, hole_behind in (("power lost", False), ("power lost, and more", True)):
        lost = after_a_loss_of_power(start=START, hole_behind=hole_behind)
        write_queue(root, lost, Options(segment_messages=400), queue=name, folder=name.replace(", ", "-"))
    write_queue(root, Level(level.messages[:0], level.events[:0]), Options(), queue="empty", folder="empty")

"""The table of all kinds of faults, and where each is planted."""

from random import Random

from tests.planter import kinds_files, kinds_groups, kinds_lines, kinds_messages, kinds_replays, kinds_streams
from tests.planter.planting import BROKEN_PROMISES, EFFECTS_OF_USE, KINDS, View, places, plant_somewhere

MODULES = (kinds_files, kinds_lines, kinds_messages, kinds_groups, kinds_replays, kinds_streams)

__all__ = ["BROKEN_PROMISES", "EFFECTS_OF_USE", "KINDS", "plants_of"]


def plants_of(kind, name, read, most=None):
    """Yield (tree, Planted) for each place of a queue at which a kind can be planted; one message has a kind once.

    ``read()`` reads the tree anew, with the queues that the kind needs.  ``most`` places at most: the first, the last,
    and others that the names of kind and queue choose.
    """
    tree = read()
    candidates = list(places(kind, View(tree.queues[name], tree)))
    if most is not None:
        between = candidates[1:-1]
        Random(f"{kind.name} {name}").shuffle(between)
        candidates[1:] = candidates[-1:] * (len(candidates) > 1) + between
    seen, count = set(), 0
    for place in candidates:
        tree, planted = plant_somewhere(kind, read, name, place)
        if planted is not None and (kind.scope == "queue" or planted.seq not in seen):
            seen.add(planted.seq)
            yield tree, planted
            count += 1
            if count == most:
                return

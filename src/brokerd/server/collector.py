"""Python's collector of cyclic garbage, kept from holding up clients.

By itself the collector looks at all live objects, again each time a quarter more have come: some 30 ms with 20,000
bindings, and more with more of them.  It hardly ever finds garbage, because the broker's objects leave no cycles
behind, and so need no collector.

Here the collector looks at each object a few times at most.  Objects that live on after that are *frozen*: put among
the objects of the start, which it never looks at.  So the time of a collection depends on the objects that were made
lately, some 2 ms.  A frozen object goes as soon as no other object refers to it, like any other.  Cycles of such
objects stay until memory is low.  Knows nothing of the broker.
"""

import gc

YOUNG, MIDDLE, OLD = 700, 10, 3  # Python's own are 700, 10, 10, which lets three times as many objects gather


def begin() -> None:
    """Freeze what is there, and begin to collect."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    gc.freeze()
    gc.enable()


def collect_all() -> None:
    """Collect cycles among all objects.  Takes some 100 ms for each million of them."""
    gc.unfreeze()
    gc.collect()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()

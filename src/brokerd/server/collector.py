"""Python's collector of cyclic garbage, kept from holding up clients.

By itself the collector looks at all objects that live, again each time a quarter more have come: some 30 ms with 20,000
bindings, and more the more there are.  It hardly ever finds anything, because what the broker makes leaves no cycles
behind when it goes, and so needs no collector.

Here the collector looks at each object a few times at most.  What lives on after that is *frozen*: put among the
objects of the start, which it never looks at.  So a collection takes time by what was made lately, some 2 ms.  One
that is frozen goes as soon as nothing names it any more, like any other.  Cycles of such objects stay until memory is
low.  Knows nothing of the broker.
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

"""Who stands under one key of an index: nobody, one destination, or many counted.

    None                    nobody
    destination             one, once
    {destination: times}    anything more; in the order they came

Almost every key has one destination, so almost every key costs no object of
its own.  Destinations are hashable and so never dicts themselves.
Times are counted because two bindings may differ in their arguments only.
"""

from collections.abc import Collection
from typing import Any

Held = Any  # see above; a destination is whatever the caller made one of


def including(held: Held, destination: Any) -> Held:
    """``held`` with ``destination`` counted once more; may change ``held`` itself."""
    if held is None:
        return destination
    if type(held) is not dict:
        held = {held: 1}
    held[destination] = held.get(destination, 0) + 1
    return held


def excluding(held: Held, destination: Any) -> Held:
    """``held`` with ``destination``, which must be in it, counted once less; may change ``held`` itself."""
    if type(held) is not dict:
        return None
    times = held[destination] - 1
    if times:
        held[destination] = times
        return held
    del held[destination]
    return held or None


def each(held: Held) -> Collection[Any]:
    """The destinations in ``held``, once each."""
    if held is None:
        return ()
    return held if type(held) is dict else (held,)

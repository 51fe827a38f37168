"""The destinations that one key of an exchange's index leads to.

    None                    no destination
    destination             one destination, bound once
    {destination: times}    more than one, or one bound more than once; the oldest binding comes first

Almost every key leads to one destination, so almost every key costs no object of its own.  Destinations are hashable,
so a destination is never a dict itself.  The dict counts bindings because two bindings of one key and one destination
may differ in their arguments.
"""

from collections.abc import Collection
from typing import Any

Destinations = Any  # one of the three forms above


def add(destinations: Destinations, destination: Any) -> Destinations:
    """Count one more binding to ``destination`` and return the result; may change ``destinations`` in place."""
    if destinations is None:
        return destination
    if type(destinations) is not dict:
        destinations = {destinations: 1}
    destinations[destination] = destinations.get(destination, 0) + 1
    return destinations


def remove(destinations: Destinations, destination: Any) -> Destinations:
    """Count one binding to ``destination`` less and return the result; may change ``destinations`` in place.

    The caller knows that ``destination`` is there.
    """
    if type(destinations) is not dict:
        return None
    times = destinations[destination] - 1
    if times:
        destinations[destination] = times
        return destinations
    del destinations[destination]
    return destinations or None


def list_once(destinations: Destinations) -> Collection[Any]:
    """Each of the destinations, once."""
    if destinations is None:
        return ()
    return destinations if type(destinations) is dict else (destinations,)

"""The collector of cycles, in a process of its own: what it does here would last for the tests behind."""

import subprocess
import sys

import pytest
from tests.broker import environment

SCRIPT = """
import gc
import weakref
from brokerd.server import collector

class Thing:
    pass

gc.disable()
before = Thing()
collector.begin()

def is_looked_at(thing):
    return any(each is thing for each in gc.get_objects())

def live_through_collections():
    thing = Thing()
    assert is_looked_at(thing)
    gc.collect()
    return thing
"""


@pytest.mark.parametrize("says", [
    "assert gc.isenabled()",
    "assert not is_looked_at(before)",
    # The old objects' collection comes by itself, and is over soon.
    "thing = Thing(); many = [[] for _ in range(100_000)]; assert not is_looked_at(thing)",
    "assert not is_looked_at(live_through_collections())",
    "thing = live_through_collections(); gone = weakref.ref(thing); del thing; assert gone() is None",
    # A cycle is found while it is young ...
    "thing = Thing(); thing.self = thing; gone = weakref.ref(thing); del thing; gc.collect(); assert gone() is None",
    # ... and later on only by collect_all().
    "thing = live_through_collections(); thing.self = thing; gone = weakref.ref(thing); del thing; gc.collect();"
    "assert gone() is not None; collector.collect_all(); assert gone() is None",
    "thing = live_through_collections(); collector.collect_all(); assert not is_looked_at(thing)",
])
def test_the_collector(says):
    done = subprocess.run([sys.executable, "-c", SCRIPT + says], env=environment(), capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr

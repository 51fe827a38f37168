"""A broker under a tool that makes it fifty times slower: its turns last fifty times as long.

    python benchmarks/unhurried.py [options of brokerd]

A turn ends by the clock.  At a fiftieth of the pace each would end after a fiftieth of the messages, and the cost of
ending it would stand in the figures.
"""

from brokerd import node
from brokerd.__main__ import main

SLOWER = 50

if __name__ == "__main__":
    node.WORK_NS *= SLOWER
    main()

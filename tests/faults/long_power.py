# ruff: noqa: T201 - a script
"""Power cuts, restart, compare: for as many cuts as wanted.  By hand:

    PYTHONPATH=src:. python tests/faults/long_power.py --cuts 1000 2>/dev/null

A cut may meet a callback of the data plane, which cannot pass it on and prints it: hence the /dev/null.

The stories are those of the power-cut tests, each kind in turn, with seeds that the suite does not use.  A fault prints
its kind and seed, with which it comes again (``--kind keys --seed 7``), and ends the script with status 1.
"""

import argparse
import pathlib
import sys
import tempfile
from random import SystemRandom

from tests.faults.test_power import Story
from tests.faults.test_power_delays import Delays, Letters
from tests.faults.test_power_journal import Journaled
from tests.faults.test_power_keys import KeyStory
from tests.faults.test_power_transactions import Transactions

KINDS = {"messages": Story, "delayed": Delays, "dead letters": Letters, "journal": Journaled, "keys": KeyStory,
         "transactions": Transactions}
SEEDS_OF_THE_SUITE = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=100, help="how many in all (default 100)")
    parser.add_argument("--kind", choices=KINDS, help="this kind of story alone")
    parser.add_argument("--seed", type=int, help="run one story, with this seed")
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    if options.seed is not None:
        return 0 if one_story(kinds[0], options.seed) is not None else 1
    cuts = dict.fromkeys(kinds, 0)
    while sum(cuts.values()) < options.cuts:
        kind = min(cuts, key=cuts.__getitem__)
        more = one_story(kind, SystemRandom().randrange(SEEDS_OF_THE_SUITE, 1 << 32))
        if more is None:
            return 1
        cuts[kind] += more
    print(f"{sum(cuts.values())} power cuts, all sound: {cuts}")
    return 0


def one_story(kind, seed):
    """The power cuts of a story that was sound; None after a fault."""
    with tempfile.TemporaryDirectory(prefix="brokerd-power-") as directory:
        try:
            return KINDS[kind].told(pathlib.Path(directory), seed).generation
        except AssertionError as error:
            print(f"FAULT in --kind {kind!r} --seed {seed}: {error}", flush=True)
            return None


if __name__ == "__main__":
    sys.exit(main())

# ruff: noqa: T201 - a script
"""Kill -9, restart, compare: for as long as wanted.  By hand:

    PYTHONPATH=src:. python tests/faults/long_run.py --minutes 10

Each pass has a seed, printed, that chooses what clients do and when the broker dies (what the kernel does meanwhile
it does not choose: a fault may need several passes to come again).  Ends with status 1 at the first fault, and keeps
the data directory, its path printed.  With ``--keys`` clients repeat keys (deduplication), and each is tried again.
"""

import argparse
import shutil
import sys
import tempfile
import time
from random import SystemRandom

from tests.broker import Broker
from tests.faults.key_rounds import HURRY, HURRY_ENV, KeyRounds
from tests.faults.rounds import Rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default 5)")
    parser.add_argument("--keys", action="store_true", help="duplicates instead of messages of all kinds")
    parser.add_argument("--seed", type=int, help="run one pass with this seed")
    parser.add_argument("--rounds", type=int, default=50, help="kills in one pass (default 50)")
    parser.add_argument("--kill-seconds", type=float, default=0.5, help="longest time between start and kill")
    parser.add_argument("--segment-octets", type=int, default=1 << 20)
    parser.add_argument("--directory", help="where data directories are made (default: the system's for such)")
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    while True:
        seed = options.seed if options.seed is not None else SystemRandom().randrange(1 << 32)
        if not one_pass(seed, options, end):
            return 1
        if options.seed is not None or time.monotonic() > end:
            return 0


def one_pass(seed, options, end):
    """True: no fault."""
    directory = tempfile.mkdtemp(prefix="brokerd-faults-", dir=options.directory)
    print(f"seed {seed}", end=" ", flush=True)
    environment = {"BROKERD_SEGMENT_OCTETS": str(options.segment_octets), "BROKERD_FREE_DISK_MIN_OCTETS": "0"}
    broker = Broker(f"{directory}/data", env=(HURRY_ENV if options.keys else {}) | environment,
                    first=HURRY if options.keys else "")
    rounds = None
    try:
        rounds = KeyRounds(broker, seed) if options.keys else Rounds(broker, seed, kill_seconds=options.kill_seconds)
        while rounds.count < options.rounds and (time.monotonic() < end or options.seed is not None):
            rounds.run()
        rounds.finish()
    except BaseException as error:
        broker.kill()
        print(f"FAULT in round {rounds.count if rounds else 0}, data in {directory}", flush=True)
        if not isinstance(error, AssertionError):
            raise
        print(error)
        return False
    print(f"{rounds.count} kills, {rounds.messages} messages, {rounds.looks} comparisons: sound", flush=True)
    shutil.rmtree(directory)
    return True


if __name__ == "__main__":
    sys.exit(main())

"""What does deduplication cost the data plane: ns for the key of one message, memory for a million keys?

    PYTHONPATH=src python benchmarks/deduplication.py --rounds 7

The plane alone, without a broker: Core.put() of 16 octets, with a key of a queue with a window, and with a key of
another queue into a queue that has none, in turns; the keys are hashed before.  Routing such a publish is Python's
(some 15 us), with a window and without, so it is left out.  Then the memory of a window, as it says itself, the cost of
loading its keys from files, and the longest that one key takes while a window grows from nothing: a publish that meets
that moment waits, and all others behind it.
"""

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import time

from brokerd import plane
from brokerd.store.format import KEY_ROW

PROPERTIES = b"\0\0"        # of a transient message: nothing waits for a sync
BODY = b"x" * 16
SIZES = (128, 10_000, 200_000)      # of windows; 128 is what x-cache-size is without a word


class Queue(plane.Queue):
    """A queue that makes its folder."""

    def make_directory(self) -> None:
        """As the plane asks for it."""
        os.makedirs(self.directory, exist_ok=True)


def make_core() -> plane.Core:
    """A core that only stores."""
    return plane.Core(schedule=lambda: None, request_sync=lambda: None, storage_failed=print, damaged=print)


def put_many(directory: str, hashes: list[int], size: int) -> float:
    """CPU ns a message.  size: keys that the window holds; with 0 the queue has no window."""
    core = make_core()
    queue = Queue(core, f"{directory}/q", durable=True)
    other = Queue(core, f"{directory}/other", durable=True)     # The same objects, but no key of this queue's.
    keys = [plane.Keys({other: one}) for one in hashes]
    if size:
        queue.window = plane.Window(size)
        for one in hashes[-size:]:
            queue.window.enter(one ^ 1, 1 << 62, 0)     # Full: each new key takes the place of the oldest.
        queue.finish_recovery(1, suspect=False)
        keys = [plane.Keys({queue: one}) for one in hashes]
    queues, put = (queue,), core.put
    began = time.process_time_ns()
    for one in keys:
        put(queues, b"", b"q", PROPERTIES, BODY, keys=one)
    spent = time.process_time_ns() - began
    queue.drop()
    return spent / len(hashes)


def longest_wait(hashes: list[int]) -> float:
    """The CPU ms of the key that took longest to enter into a window that grew until it had them all."""
    window = plane.Window(len(hashes))
    enter, clock = window.enter, time.thread_time_ns
    longest = 0
    gc.collect()
    gc.disable()
    try:
        before = clock()
        for one in hashes:
            enter(one, 1 << 62, 0)
            now = clock()
            if now - before > longest:
                longest = now - before
            before = now
    finally:
        gc.enable()
    return longest / 1e6


def main() -> None:
    """Measure in turns; print medians and the best of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in the window that is weighed")
    options = parser.parse_args()
    hashes = [(n * 0x9E3779B97F4A7C15 & (1 << 64) - 1) or 1 for n in range(1, options.keys + 1)]
    published = hashes[:options.messages]
    figures: dict[int, list[float]] = {size: [] for size in (0, *SIZES)}
    for _ in range(options.rounds + 1):
        for size, found in figures.items():
            directory = tempfile.mkdtemp(prefix="brokerd-keys-")
            found.append(put_many(directory, published, size))
            shutil.rmtree(directory)
    without = sorted(figures.pop(0)[1:])                # the first one warms up
    print(f"put without keys: {statistics.median(without):.0f} ns ({without[0]:.0f})")
    for size, found in figures.items():
        found = sorted(found[1:])
        print(f"a key, window of {size:,}: {statistics.median(found) - statistics.median(without):.0f} ns more "
              f"({found[0] - without[0]:.0f})")
    rows = b"".join([KEY_ROW.pack(n, one, (1 << 63) - 1) for n, one in enumerate(hashes)])
    window = plane.Window(options.keys)
    began = time.process_time_ns()
    window.load(rows, 0)
    spent = time.process_time_ns() - began
    print(f"window: {window.octets / 1e6:.1f} MB for {len(window):,} keys; {spent / len(window):.0f} ns a key loaded")
    # A step of the window takes long in each round; what the machine puts in its way does not.
    waits = sorted(longest_wait(hashes) for _ in range(options.rounds))
    print(f"longest wait for one key while a window grows to {len(hashes):,}: {statistics.median(waits):.2f} ms "
          f"({waits[0]:.2f})")


if __name__ == "__main__":
    main()

"""A broker that notes the longest turn of its loop, in CPU time: a busy machine does not change that.

    python benchmarks/probed.py FILE [options of brokerd]

FILE gets one number of 8 octets: nanoseconds that the loop's thread worked from one round of the loop to the next, at
most.  Writing a zero there begins again.  The loop never sleeps, because a callback asks for the next round in each; so
latencies and CPU of such a broker say nothing.
"""

import mmap
import sys
from pathlib import Path
from time import thread_time_ns

import uvloop

from brokerd.__main__ import main

OCTETS = 8


def longest_ms(file: Path) -> float:
    """Milliseconds of the longest turn since this was asked last."""
    found = int.from_bytes(file.read_bytes(), sys.byteorder) / 1e6
    with file.open("r+b") as cell:
        cell.write(bytes(OCTETS))
    return found


def watch(file: Path) -> None:
    """Have each new loop note its longest turn in the file."""
    file.write_bytes(bytes(OCTETS))
    with file.open("r+b") as opened:
        cell = memoryview(mmap.mmap(opened.fileno(), OCTETS)).cast("Q")
    new_event_loop, last = uvloop.new_event_loop, 0

    def make() -> uvloop.Loop:
        loop = new_event_loop()

        def look() -> None:
            nonlocal last
            now = thread_time_ns()
            if last and now - last > cell[0]:
                cell[0] = now - last
            last = now
            loop.call_soon(look)

        loop.call_soon(look)
        return loop

    uvloop.new_event_loop = make


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
    del sys.argv[1]
    main()

"""What does it cost the kernel alone to move a message's octets?  The least that any broker can need.

    PYTHONPATH=src python benchmarks/floor.py 74 75

A process reads octets from one connection over loopback TCP and writes as many as are asked for to another one, 256 KiB
at a time, and does nothing else.  suite.py measures this beside its rows.  Printed: CPU seconds of that process for a
million messages with so many octets in and out.
"""

import argparse
import os
import socket
import threading

CALL_OCTETS = 256 << 10
RUN_OCTETS = 256 << 20  # of the larger side


def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of one over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def move(source: socket.socket, sink: socket.socket, octets_in: int, octets_out: int) -> None:
    """Read all and write all, in step."""
    buffer = memoryview(bytearray(CALL_OCTETS))
    read = written = 0
    while read < octets_in or written < octets_out:
        if read < octets_in:
            read += source.recv_into(buffer)
            due = octets_out * read // octets_in
        else:
            due = octets_out
        while written < due:
            written += sink.send(buffer[: min(due - written, CALL_OCTETS)])
            if not octets_in:
                break


def feed(sink: socket.socket, octets: int) -> None:
    """Write so many octets."""
    buffer = memoryview(bytes(CALL_OCTETS))
    while octets:
        octets -= sink.send(buffer[: min(octets, CALL_OCTETS)])


def drain(source: socket.socket, octets: int) -> None:
    """Read so many octets."""
    buffer = bytearray(CALL_OCTETS)
    while octets:
        octets -= source.recv_into(buffer)


def floor(octets_in: int, octets_out: int) -> float:
    """CPU seconds for a million messages with so many octets in and out."""
    messages = RUN_OCTETS // max(octets_in, octets_out)
    (feeder, source), (sink, drained) = connection(), connection()
    mover = os.fork()
    if not mover:
        try:
            move(source, sink, octets_in * messages, octets_out * messages)
            os._exit(0)
        finally:
            os._exit(1)
    threads = [threading.Thread(target=feed, args=(feeder, octets_in * messages)),
               threading.Thread(target=drain, args=(drained, octets_out * messages))]  # fmt: skip
    for thread in threads:
        thread.start()
    _, status, spent = os.wait4(mover, 0)
    for thread in threads:
        thread.join()
    for one in (feeder, source, sink, drained):
        one.close()
    if status:
        raise RuntimeError("the process that moves octets has failed")
    return (spent.ru_utime + spent.ru_stime) / messages * 1e6


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("octets_in", type=int, metavar="IN")
    parser.add_argument("octets_out", type=int, metavar="OUT")
    options = parser.parse_args()
    print(f"{floor(options.octets_in, options.octets_out):.3f} s/M")


if __name__ == "__main__":
    main()

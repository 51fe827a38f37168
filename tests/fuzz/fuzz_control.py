"""Requests of every kind at the control socket of a running broker: whole, spoiled, half sent, many at once.

    PYTHONPATH=src:. python -m tests.fuzz.fuzz_control --seconds 60 [--blocks N] [--first N] [--seed N]

A block is one broker with some queues and users.  An input is one line for the socket, made of rows of
``operations.table``: a verb with fields that are right, wrong, missing or too many; or octets that are no request.
What must hold: every whole line has one answer, with a result or an error in words with a code of HTTP's; no answer is
500 "internal error"; the broker lives, serves AMQP, and logs no fault of its own.
"""

import contextlib
import json
import os
import random
import shutil
import socket
import struct
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.broker import Broker
from tests.faults.client import Client
from tests.fuzz import talk
from tests.fuzz.fuzz_frames import pieces_of
from tests.fuzz.fuzz_methods import Fault, Guard, faults_of
from tests.fuzz.options import options_of, parser_of, tell
from tests.plane import harness

from brokerd.operations.rows import request_fields
from brokerd.operations.table import by_name
from brokerd.wire import methods

BLOCK, ROUND = 5000, 500        # inputs
TOGETHER = 8                    # connections; the broker takes 32
SECONDS = 120
CODES = (400, 401, 403, 404, 409, 412, 500)
USERS = ("guest", "nobody", "reader", "", "é", 5, None, ["guest"])
VHOSTS = ("/", "/", "/", "none", "", "\udcff", 1)
QUEUES = (*talk.QUEUE_NAMES[:12], "missing", "", "x" * 300, "\udcff", 7, None)
NUMBERS = (1, 2, 3, 10, 0, -1, 1 << 31, (1 << 63) - 1, 1 << 64, 1 << 200, 1.5, "1", True, None)
ODD = (None, True, 0, -1, 1.5, 1e400, "", "x" * 70_000, [], {}, [[[]]], {"a": {"b": 1}}, "\0", "\ud800")
RAW = (b"\n", b"{}\n", b"[]\n", b"5\n", b"null\n", b"\xff\xfe\n", b"{" * 500 + b"\n", b"[" * 60_000 + b"\n",
       b'{"verb": 5}\n',
       b'{"verb": "queue ordering", "queue": NaN}\n', b'{"verb": "queue ordering"', b"x" * 70_000, b" \t\r\n", b"\0\n",
       b'{"verb":"queue ordering","verb":"x","queue":"plain"}\n', b'{"verb": "queue ordering", "queue": "\\ud800"}\n')


def rows():
    """The operations asked for.  Most that change a broker are left out: they take from it what the guard needs."""
    return [row for row in by_name().values() if not row.changes or row.name in ("queue dump", "message publish")]


class Asker:
    """What one connection asks for: lines, and how it goes."""

    def __init__(self, seed, folder):
        self.rng = random.Random(seed)
        self.folder = folder
        self.rows = rows()

    def line(self):
        """One input, with its newline unless it is left off."""
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice(RAW)
        request = self.request()
        octets = json.dumps(request).encode() + b"\n"
        if rng.random() < 0.15 and "out" not in request:    # Else the broker would write another folder.
            changed = bytearray(octets)
            talk.spoil(rng, changed, octets)
            octets = bytes(changed)
        return octets

    def request(self):
        rng = self.rng
        row = rng.choice(self.rows)
        name = rng.choice((row.name, row.name, row.name, *row.aliases, row.name.upper(), row.noun, "queue oderring"))
        fields = {each.name: self.value(each) for each in request_fields(row.request)
                  if each.required or rng.random() < 0.3}
        if rng.random() < 0.1 and fields:
            del fields[rng.choice(list(fields))]
        if rng.random() < 0.1:
            fields[rng.choice(("odd", "queue", "vhost", "seq", "self"))] = rng.choice(ODD)
        if rng.random() < 0.2:
            fields["as"] = rng.choice(USERS)
        return {"verb": name, **fields}

    def value(self, field):
        """One for a field of a request, mostly of its type."""
        rng = self.rng
        if rng.random() < 0.08:
            return rng.choice(ODD)
        if field.field.path:
            return rng.choice((f"{self.folder}/{rng.randrange(20)}", f"{self.folder}/0", "relative", "/proc/none", "",
                               "/"))
        if field.name == "vhost":
            return rng.choice(VHOSTS)
        if field.name == "queue":
            return rng.choice(QUEUES)
        if field.type is int:
            return rng.choice(NUMBERS)
        return rng.choice(("", "*", "p*", "[", "few", "/" * 300, *QUEUES))


class Connection:
    """Sends lines in pieces and judges the answers."""

    def __init__(self, seed, folder, path):
        self.rng = random.Random(seed + 1)
        asker = Asker(seed, folder)
        self.lines = [asker.line() for _ in range(self.rng.choice((1, 3, 10, 30)))]
        self.pieces = pieces_of(self.rng, b"".join(self.lines))
        self.ending = self.rng.choice(("read", "read", "read", "go", "deaf"))
        self.came = b""
        self.said_all = False
        self.counts = Counter()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(path)

    def talk(self):
        """Say all; then read until the broker has closed, or go."""
        with contextlib.suppress(ConnectionError):
            for piece in self.pieces:
                self.sock.settimeout(0.5)       # It need not read what it cannot answer.
                try:
                    self.sock.sendall(piece)
                except TimeoutError:
                    break
                if self.ending == "go" and self.rng.random() < 0.2:
                    break
            else:
                self.said_all = True
        self.sock.settimeout(SECONDS)

    def finish(self):
        """The answers by their code; 200 for a result."""
        try:
            if self.ending == "go":
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return self.counts
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
            if self.ending == "deaf":
                return self.counts
            with contextlib.suppress(ConnectionResetError):
                while octets := self.sock.recv(1 << 16):
                    self.came += octets
        finally:
            self.sock.close()
        answers = [json.loads(line) for line in self.came.split(b"\n")[:-1]]
        for answer in answers:
            self.judge(answer)
        asked = sum(bool(line.strip()) for line in b"".join(self.lines).split(b"\n")[:-1])
        closed = answers and "at most" in answers[-1].get("error", "")      # Too long: the rest is not looked at.
        answered = sum("progress" not in answer for answer in answers)
        if self.said_all and not closed and answered != asked:
            raise Fault(f"{asked} requests, {answered} answers: {self.lines}, {answers}")
        return self.counts

    def judge(self, answer):
        if set(answer) == {"progress"}:
            return
        if set(answer) == {"result"}:
            self.counts[200] += 1
            return
        text = answer.get("error")
        if set(answer) != {"error", "code"} or answer["code"] not in CODES or not text or "\n" in text:
            raise Fault(f"no answer: {answer}")
        if "internal error" in text:
            raise Fault(f"{answer}; the lines were {self.lines}")
        self.counts[answer["code"]] += 1


class Block:
    """One broker."""

    def __init__(self, seed, number, env=None):
        self.seed, self.number = seed, number
        self.rng = random.Random(seed << 40 | number)
        self.directory = tempfile.mkdtemp(prefix="bf-")        # A socket's path is short.
        self.broker = Broker(Path(self.directory) / "data", env=(env or {}) | {"BROKERD_FREE_DISK_MIN_OCTETS": "0"})
        self.path = str(Path(self.directory) / "data" / "control.sock")
        self.guard = Guard()
        self.counts = Counter()

    def run(self, inputs):
        self.broker.start()
        self.guard.connect(self.broker)
        with Client(self.broker.port) as client:
            for name in talk.QUEUE_NAMES[:12]:
                client.ask(methods.QueueDeclare(queue=name, **talk.QUEUES[name]), methods.QueueDeclareOk)
                client.ask(methods.BasicConsume(queue=name), methods.BasicConsumeOk)
                for size in (5, 300, 5000):
                    client.sock.sendall(harness.publish(1, bytes(size), name.encode(), persistent=True))
            client.ask(methods.BasicQos(), methods.BasicQosOk)
            while self.counts["inputs"] < inputs:
                self.round()
        self.guard.close()
        self.broker.stop()
        self.check_log()

    def round(self):
        done = 0
        while done < ROUND:
            some = [Connection(self.seed << 50 | self.number << 24 | 2 * (self.counts["connections"] + each),
                               f"{self.directory}/dumps", self.path)
                    for each in range(self.rng.randrange(1, TOGETHER + 1))]
            self.counts["connections"] += len(some)
            for each in some:
                each.talk()
            for each in some:
                self.counts.update(each.finish())
                done += len(each.lines)
        self.counts["inputs"] += done
        shutil.rmtree(f"{self.directory}/dumps", ignore_errors=True)
        os.makedirs(f"{self.directory}/dumps", exist_ok=True)
        if not self.broker.running:
            raise Fault("the broker ended")
        self.check_answer()
        self.guard.check()
        self.check_log()

    def check_answer(self):
        """A good request is answered as ever."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(SECONDS)
            sock.connect(self.path)
            sock.sendall(b'{"verb": "queue ordering", "queue": "guard"}\n')
            came = b""
            while not came.endswith(b"\n"):
                octets = sock.recv(1 << 16)
                if not octets:
                    raise Fault(f"a good request got {came!r}")
                came += octets
            if json.loads(came)["result"]["queue"] != "guard":
                raise Fault(f"a good request got {came!r}")

    def check_log(self):
        lines, self.broker.lines[:] = self.broker.lines[:], []
        found = faults_of(lines)
        if found:
            raise Fault("\n".join(["the broker's log tells of a fault:", *found[:100]]))

    def close(self):
        self.broker.kill()
        shutil.rmtree(self.directory)


def fuzz(*, seed=0, first=0, blocks=None, seconds=None, inputs=BLOCK, env=None, tell=lambda line: None):
    """Blocks first, first + 1, ...; what was counted, answers by their code."""
    stop = time.monotonic() + seconds if seconds is not None else None
    counts, number = Counter(), first
    while (blocks is None or number < first + blocks) and (stop is None or time.monotonic() < stop):
        block = Block(seed, number, env)
        try:
            block.run(inputs)
        except BaseException as error:
            error.add_note(f"block {number} of seed {seed}; repeat with --seed {seed} --first {number} --blocks 1")
            error.add_note("the last lines of its log:\n" + "\n".join(block.broker.lines[-50:]))
            raise
        finally:
            block.close()
        counts += block.counts
        number += 1
        tell(f"block {number - 1} of seed {seed}: {counts['inputs']} inputs in all")
    return counts


def main():
    options = options_of(parser_of(__doc__, "blocks"), "blocks")
    counts = fuzz(**options)
    answers = ", ".join(f"{code}: {counts[code]}" for code in (200, *CODES))
    tell(f"{counts['inputs']} inputs of seed {options['seed']} from {counts['connections']} connections, no fault.  "
         f"Answers: {answers}")


if __name__ == "__main__":
    main()

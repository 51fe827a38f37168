"""The counters of a live broker and the audit of its files tell the same story, after whatever its clients did and
however often it was killed.

Queues with order journals are published to, read by disorderly clients, purged, and killed with their broker, again
and again.  Then the files are read as an auditor would read them.
"""

import signal
import threading
from random import Random

import numpy as np
import pytest
from tests.broker import Broker
from tests.faults.actors import Purger
from tests.faults.client import Client
from tests.faults.journal_actors import Getter, Publisher, Reader
from tests.faults.ledger import read_body
from tests.faults.rounds import kill_in_the_midst, start_unharmed
from tests.faults.test_kill import ENVIRONMENT

from brokerd.audit import deliveries, holders, places
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.cli import brokerctl
from brokerd.store import format as layout
from brokerd.store import reading
from brokerd.wire import methods

ROUNDS = 8
JOURNAL = {"x-order-journal": True}


def dead_to(name, **more):
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, **more}


AT_LEAST_ONCE = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
QUEUES = {
    "plain": {},
    "levels": {"x-max-priority": 4},
    "limited": dead_to("dead", **{"x-delivery-limit": 2}),
    "dropped": {"x-delivery-limit": 1, "x-delivery-limit-action": "drop"},
    "safe": dead_to("safe.dead", **AT_LEAST_ONCE, **{"x-delivery-limit": 2}),
    "aged": dead_to("dead", **{"x-message-ttl": 15}),
    "aged.lost": {"x-message-ttl": 5, "x-max-priority": 1},
    "short": {"x-max-length": 20},
    "short.dead": dead_to("dead", **{"x-max-length": 20, "x-max-priority": 2}),
    "late": {"x-consumer-timeout": 30},
    "got": {},
    "purged": {"x-max-priority": 1},
    "one": {"x-single-active-consumer": True},
    "dead": {}, "safe.dead": {},
}
READ = ("plain", "levels", "limited", "dropped", "safe", "aged", "short", "short.dead", "late", "one", "dead")
# What had reached its limit, and was not settled yet when the broker was killed, is ready again: beyond its limit, and
# behind what went out meanwhile.
DYING = {(queue, name) for queue, arguments in QUEUES.items() if "x-delivery-limit" in arguments
         for name in ("returned_first", "delivery_limit", "limit_kept")}

# kill -9 may come between the entry that settles a message and its event; then nobody can tell what the event was.  It
# takes the line of a consumer that had just come.
LEFT_BY_KILLS = {("agreement", "undecidable"), ("holes", "undecidable"), ("consumers", "undecidable")}


class Rounds:
    """Lives of one broker, each ended by kill -9 (now and then by SIGTERM)."""

    def __init__(self, broker, seed):
        self.broker, self.random = broker, Random(seed)
        self.streams = 0
        self.confirmed = {name: set() for name in QUEUES}
        with Client(broker.port) as client:
            for name, arguments in QUEUES.items():
                client.ask(methods.QueueDeclare(queue=name, durable=True, arguments=JOURNAL | arguments),
                           methods.QueueDeclareOk)

    def crew(self):
        port, random, crew = self.broker.port, self.random, []
        queues = [name for name in QUEUES if name not in ("dead", "safe.dead")]
        for _ in range(2):
            self.streams += 1
            some = random.sample(queues, random.randrange(3, len(queues)))
            crew.append(Publisher(port, Random(random.random()), self.streams, some, self.confirmed))
        crew += [Reader(port, Random(random.random()), name) for name in READ for _ in range(random.randrange(3))]
        crew += [Getter(port, Random(random.random()), name) for name in ("got", "levels", "plain")
                 if random.random() < 0.5]
        crew.append(Purger(port, Random(random.random()), "purged", 0.0005))
        return crew

    def run(self):
        """Load, and the end of the broker."""
        crew = self.crew()
        number = signal.SIGTERM if self.random.random() < 0.15 else signal.SIGKILL
        kill_in_the_midst(self.broker, crew, self.random.randrange(50, 2500), number)

    def restart(self):
        start_unharmed(self.broker)

    def waiting(self):
        """queue -> messages that are ready."""
        with Client(self.broker.port) as client:
            return {name: client.ask(methods.QueueDeclare(queue=name, passive=True),
                                     methods.QueueDeclareOk).message_count for name in QUEUES}


def live_counters(folder):
    """What the broker counted since the queue was declared."""
    try:
        counts = np.fromfile(f"{folder}/{layout.ORDER_FILE}", "<u8", len(layout.ORDER_COUNTERS), offset=64).tolist()
    except FileNotFoundError:
        counts = [0] * len(layout.ORDER_COUNTERS)
    return dict(zip(layout.ORDER_COUNTERS, counts, strict=True))


def bodies(source, queue):
    """Bodies of all records of a queue."""
    found = []
    for triple in queue.triples:
        octets = source.read(triple.msgs)
        records = reading.scan_records(octets, int.from_bytes(octets[40:44], "little"))
        sizes = reading.body_octets(octets, records)
        ends = records.positions + records.headers["length"]
        found += [octets[end - size:end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    return found


def check(directory, confirmed):
    """Compare what the broker counted with what an audit finds; rows of the verdicts, by queue and audit."""
    source = open_source(str(directory))
    rows = {}
    folders = {queue.queue: queue for queue in source.queues()}
    for judged in audit(source, Options()):
        name = judged.queue["queue"]
        live = live_counters(f"{directory}/{folders[name].folder}")
        assert judged.queue["counters"] == live, name
        rows |= {(name, row["audit"]): row for row in judged.audits}
        assert rows[name, "overtaking"]["found"] == live["out_of_sequence"]
        assert rows[name, "overtaking"]["overtakings"] == live["overtakings"]
        stored = {read_body(body) for body in bodies(source, folders[name])}
        assert not confirmed[name] - stored, name
    assert {name for name, _ in rows} == set(QUEUES)
    wrong = [row for key, row in rows.items()
             if row["verdict"] != "held" and key[1] != "overtaking" and key not in DYING
             and (key[1], row["verdict"]) not in (*LEFT_BY_KILLS, ("chain", "covers nothing"))]
    assert not wrong, wrong
    return rows


@pytest.mark.parametrize("seed", [1, 2])
def test_the_audit_of_the_files_finds_what_the_broker_counted(tmp_path, seed):
    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        rounds = Rounds(broker, seed)
        for _ in range(ROUNDS):
            rounds.run()
            rounds.restart()
        rounds.run()
        rows = check(tmp_path, rounds.confirmed)
        assert sum(row["found"] for (_, name), row in rows.items() if name == "overtaking") > 100
        rounds.restart()
        check_dump(tmp_path, tmp_path.parent / f"{tmp_path.name}.dump")
        broker.stop()


def check_dump(directory, out):
    """A dump of the broker after all this has every count of it, and nothing in it breaks a promise."""
    assert brokerctl.run(["-D", str(directory), "queue", "dump", str(out)]) == 0
    rows = {(row["queue"], row["audit"]): row for judged in audit(open_source(str(out))) for row in judged.audits}
    assert [row for row in rows.values() if row["verdict"] == "violated"
            and (row["queue"], row["audit"]) not in DYING] == []
    compared = {name: rows[name, "counters"] for name in QUEUES if rows[name, "counters"]["checked"]}
    assert {row["verdict"] for row in compared.values()} == {"held"}
    assert set(compared) >= {"plain", "levels", "limited", "one"}
    for name in ("after_cut", "numbers", "words"):
        assert {rows[queue, name]["verdict"] for queue in QUEUES} == {"held"}


LOOKS = frozenset((*deliveries.AUDITS, *holders.AUDITS, *places.AUDITS, "wrong_level", "words"))


def test_looks_at_a_running_broker_accuse_nobody(tmp_path):
    wrong, looks, over = [], [], threading.Event()

    def look():
        while True:
            for judged in audit(open_source(str(tmp_path)), Options(audits=LOOKS)):
                wrong.extend(row for row in judged.audits if row["verdict"] == "violated")
            looks.append(1)
            if over.is_set():
                return

    with Broker(tmp_path, env=ENVIRONMENT) as broker:
        rounds = Rounds(broker, 11)
        for _ in range(3):
            over.clear()
            looker = threading.Thread(target=look)
            looker.start()
            try:
                rounds.run()
            finally:
                over.set()
                looker.join()
            rounds.restart()
        broker.stop()
    assert wrong == []
    assert len(looks) >= 3

"""Rounds of load with duplicates, kill -9, and every key published again; ``test_kill_deduplication`` runs some,
``long_run --keys`` as many as wanted.

    rounds = KeyRounds(broker, seed)        the broker: first=HURRY, env=HURRY_ENV
    rounds.run()        load, kill -9, restart, all keys tried
    rounds.finish()     all queues drained

The periodic work of these brokers is done many times a second, so that key files are written, swept, and compacted
segments replaced, while they die.
"""

import os
import time
from random import Random

from tests.faults.actors import Purger
from tests.faults.client import Client
from tests.faults.key_actors import Committer, Publisher, Worker, octets_of
from tests.faults.key_ledger import Ledger, Place
from tests.faults.rounds import check_unharmed, kill_in_the_midst, kill_while_it_starts
from tests.plane import harness

from brokerd.wire import methods

RULE = {"x-message-deduplication": True, "x-cache-size": 1 << 20}
FEW, SHORT_S = 48, 0.5
SIZES = (0, 0, 0, 0, 100, 2000)       # octets of what is tried
KEYS_MAX = 5_000               # tried again in one place, the newest and some of the others
HURRY = """
from brokerd.server import launch
from brokerd.store import key_log
from brokerd.upkeep import upkeep

launch.TICK_SECONDS, upkeep.COMPACT_EVERY_TICKS, key_log.ROWS_MIN = 0.02, 3, 64
"""
HURRY_ENV = {"BROKERD_SEGMENT_OCTETS": str(1 << 20), "BROKERD_FREE_DISK_MIN_OCTETS": "0"}


class KeyRounds:
    def __init__(self, broker, seed):
        self.broker, self.random = broker, Random(seed)
        self.count = self.messages = self.looks = 0
        self.met = set()                # kinds of files that a killed broker left
        self.places = [
            Place("q"), Place("levels", levels=2), Place("purged", purged=True),
            Place("x", exchange="x", queues=("x.1", "x.2"), levels=2), Place("both", exchange="y"),
            Place("few", size=FEW), Place("few.x", exchange="few.x", size=FEW),
            Place("short", ttl_s=SHORT_S), Place("short.x", exchange="short.x", ttl_s=SHORT_S),
            Place("grouped", groups=5),
        ]
        self.ledger = Ledger(self.places, time.time)
        if broker.process is None:
            broker.start()
        with Client(broker.port) as client:
            self.declare(client)

    @staticmethod
    def declare(client):
        few, short = {**RULE, "x-cache-size": FEW}, {**RULE, "x-cache-ttl": round(SHORT_S * 1000)}
        for name, arguments in {
            "q": RULE, "levels": {**RULE, "x-max-priority": 2}, "purged": RULE, "both": RULE, "few": few,
            "short": short, "grouped": {**RULE, "x-deduplication-scope": "group"},
            "x.1": {}, "x.2": {"x-max-priority": 2}, "few.x": {}, "short.x": {},
        }.items():
            client.ask(methods.QueueDeclare(queue=name, durable=True, arguments=arguments), methods.QueueDeclareOk)
        for name, arguments, queues in (("x", RULE, ("x.1", "x.2")), ("y", RULE, ("both",)),
                                        ("few.x", few, ("few.x",)), ("short.x", short, ("short.x",))):
            client.ask(methods.ExchangeDeclare(exchange=name, type="fanout", durable=True, arguments=arguments),
                       methods.ExchangeDeclareOk)
            for queue in queues:
                client.ask(methods.QueueBind(queue=queue, exchange=name), methods.QueueBindOk)

    @property
    def saw_everything(self):
        """Files of both kinds, keys that were known and keys that had fallen out of their window."""
        return self.met >= {"of a queue", "of an exchange"} and self.ledger.duplicates and self.ledger.forgotten

    # --- one round

    def run(self):
        self.count += 1
        crew = self.crew()
        kill_in_the_midst(self.broker, crew, self.random.randrange(10, 1500))
        self.messages += sum(actor.sent for actor in crew if isinstance(actor, Publisher | Committer))
        self.note_files()
        while self.random.random() < 0.3:
            # In recovery if it can be hit, or when its periodic work has begun.
            kill_while_it_starts(self.broker, self.random.uniform(0.05, 0.4))
        begin = len(self.broker.lines)
        self.broker.start()
        self.look()
        check_unharmed(self.broker, begin, "duplicates may pass")

    def crew(self):
        port, random, ledger = self.broker.port, self.random, self.ledger
        some = random.sample(self.places, random.randrange(1, len(self.places) + 1))
        for_ever = [place for place in self.places if place.for_ever]
        crew = [Publisher(port, Random(random.random()), ledger, some) for _ in range(random.randrange(1, 4))]
        crew += [Committer(port, Random(random.random()), ledger, for_ever) for _ in range(random.randrange(3))]
        crew += [Worker(port, Random(random.random()), ledger, queue)
                 for place in some for queue in place.queues for _ in range(random.randrange(3))]
        if any(place.purged for place in some):
            crew.append(Purger(port, Random(random.random()), "purged", 0.05))
        return crew

    def note_files(self):
        for _, _, names in os.walk(self.broker.directory):
            for name in names:
                if name.startswith("keys.0"):
                    self.met.add("of a queue")
                elif name.startswith("keys.") and name.endswith("2"):   # not the first one of its exchange
                    self.met.add("of an exchange")

    # --- after the restart

    def look(self):
        ledger = self.ledger
        with Client(self.broker.port) as client:
            for place in self.places:
                for queue in place.queues:
                    self.receive_all(client, queue)
                ledger.looked(place)
        ledger.check_batches()
        with Client(self.broker.port) as client:
            client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
            told = 0
            for place in self.places:
                told = self.try_keys(client, place, told, known=True)
                told = self.try_keys(client, place, told, known=False)
        self.looks += 1

    def receive_all(self, client, queue, *, drain=None):
        """The attempts that are in a queue, which is left as it was, or emptied."""
        passive = methods.QueueDeclare(queue=queue, passive=True)
        count = client.ask(passive, methods.QueueDeclareOk).message_count
        client.ask(methods.BasicConsume(queue=queue, consumer_tag="all"), methods.BasicConsumeOk)
        found = [self.ledger.receive(queue, content.body) for content in client.wait_for_contents(count)]
        client.ask(methods.BasicCancel(consumer_tag="all"), methods.BasicCancelOk)
        if drain or (drain is None and self.random.random() < 0.5):
            if found:
                client.sock.sendall(harness.ack(1, 0, True))
        else:
            client.sock.sendall(harness.nack(1, 0, True))
        client.ask(methods.BasicQos(), methods.BasicQosOk)      # That is done.
        return found

    def try_keys(self, client, place, told, *, known):
        """Publish all keys again of which this is surely so: each is a duplicate, or each is stored.

        Returns the number of publishes in all.
        """
        begin = time.time()
        # Those that would fall out while they are tried are left out.
        keys = place.must_know(begin + 0.1) if known else place.must_not_know(begin)
        if len(keys) > KEYS_MAX:
            keys = self.random.sample(keys[:-KEYS_MAX // 2], KEYS_MAX // 2) + keys[-KEYS_MAX // 2:]
        if not keys:
            return told
        attempts, octets, until = {}, bytearray(), {key: key.ttl_s for key in keys}
        for key in keys:
            number, publish = octets_of(self.random, self.ledger, place, key, SIZES)
            attempts[number] = key
            octets += publish
        client.sock.sendall(octets)
        told += len(keys)
        self.wait_for_confirms(client, told)
        end = time.time()
        with Client(self.broker.port) as other:
            stored = {number for queue in place.queues for number in self.receive_all(other, queue)} & attempts.keys()
        for number, key in attempts.items():
            if known:
                in_time = until[key] is None or key.began_s + until[key] > end
                assert number not in stored or not in_time, (
                    f"{place.name}: key {key.number} was stored, and is forgotten: {key.copies}")
                self.ledger.duplicates += 1
            else:
                assert number in stored or place.purged, (
                    f"{place.name}: key {key.number} counts, though no message has it: {key.copies}")
                self.ledger.forgotten += key.sure is not None
            if number in stored:
                self.ledger.stored_again(key, number, begin)
            else:
                key.ttl_s = until[key]
        return told

    @staticmethod
    def wait_for_confirms(client, told):
        confirmed = 0
        while confirmed < told:
            ack = client.expect(methods.BasicAck)
            confirmed = max(confirmed, ack.delivery_tag)

    def finish(self):
        with Client(self.broker.port) as client:
            for queue in self.ledger.of_queue:
                self.receive_all(client, queue, drain=True)
        self.broker.stop()

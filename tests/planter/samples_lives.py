"""A second sample, of queues that combine rules, whose broker lives six times; for the tools that are run by hand.

    ranked      three priorities, delivery limit 2; dead letters go to ``ranked-dead``
    again       three priorities, delivery limit 1, settled messages stay: some are replayed in two of the lives
    slow        three priorities; returned messages wait 40 ms; they fail three times at most
    teams       message groups, each with up to two messages out
    feed        a stream; ``reader`` reads all of it
    worked      two consumers; nack, reject, lost connections

``python -m tests.planter.samples_lives FOLDER`` makes it.
"""

import sys

from tests.planter.samples import JOURNAL, Publisher, Sample, Story

QUEUES = {
    "ranked": JOURNAL | {"x-max-priority": 2, "x-delivery-limit": 2, "x-dead-letter-exchange": "",
                         "x-dead-letter-routing-key": "ranked-dead"},
    "ranked-dead": JOURNAL,
    "again": JOURNAL | {"x-max-priority": 2, "x-delivery-limit": 1, "x-retention-bytes": 1 << 30},
    "slow": JOURNAL | {"x-max-priority": 2, "x-delivery-limit": 3, "x-delayed-retry-type": "all",
                       "x-delayed-retry-min": 40, "x-delayed-retry-max": 40},
    "teams": JOURNAL | {"x-message-group": "exclusive", "x-message-group-header": "customer"},
    "feed": {"x-queue-type": "stream"},
    "worked": JOURNAL,
}
LIVES = 6
EACH = 80                           # messages that a queue gets in a life


def _decide(number, redelivered):
    if number % 19 == 7:
        return "reject"
    return "nack" if number % 13 == 4 or (number % 7 == 2 and not redelivered) else "ack"


class Lives(Story):
    def tell(self):
        with self.broker:
            self.publisher = Publisher(self.port)
            for name, arguments in QUEUES.items():
                self.publisher.channels[0].queue_declare(name, durable=True, arguments=arguments)
            for life in range(LIVES):
                self._life(life)
                if life < LIVES - 1:
                    self._again(kill=life % 3 != 0)
            dump = self.directory / "dump"
            self.control("queue", "dump", dump)
            for worker in self.open:
                if worker.connection.is_open:
                    worker.close()
            self.publisher.close()
        return Sample(dump, self.broker.directory)

    def _life(self, life):
        numbers = range(life * EACH, life * EACH + EACH)
        for name in ("ranked", "again", "slow"):
            self.publisher.publish(name, numbers, priority=lambda number: number * 5 % 3)
            worker = self.worker(name, 3, f"{name}-{life}")
            worker.work(EACH * 2 // 3, _decide).take()
        if life % 2:
            self.control("queue", "replay", "again", "--seqs", f"{life * 20}-{life * 20 + 9}")
            self.worker("again", 2, f"more-{life}").work(12, _decide).take()
        self.publisher.publish("teams", numbers, headers=lambda number: {"customer": f"c{number % 5}"})
        one, two = self.worker("teams", 3, "a"), self.worker("teams", 3, "b")
        for _ in range(3):
            one.work(6, _decide)
            two.work(6, _decide)
        self.publisher.publish("feed", numbers)
        reading = {"x-stream-reader": "reader", "x-stream-offset": "first"}
        self.worker("feed", 10, f"feed-{life}", reading).work(EACH // 2)
        self.publisher.publish("worked", numbers)
        one, two = self.worker("worked", 4, "one"), self.worker("worked", 6, "two")
        one.work(20, _decide).take(4).vanish()
        two.work(20, _decide).take(6)


def main():
    Lives(sys.argv[1]).tell()


if __name__ == "__main__":
    main()

"""The audit accuses no broker that kept its promises: at rest, while it works, and after kill -9."""

import threading
from functools import partial

import pika
import pytest
from tests.planter.asking import ask
from tests.planter.kinds import BROKEN_PROMISES, EFFECTS_OF_USE
from tests.planter.samples import FLAGS, QUEUES, Publisher, Worker, drain

LOOKS = 3


def accusations(said):
    return {key: row for key, row in said.items() if row.verdict == "violated" and key[1] not in EFFECTS_OF_USE}


def unsure(said):
    return {key: row for key, row in said.items() if row.verdict == "undecidable" and key[1] in BROKEN_PROMISES
            and key[0] not in ("bare", "events")}


def test_a_dump_and_the_directory_of_a_stopped_broker_are_held(sample):
    for said in (ask(sample.dump), ask(sample.stopped)):
        assert {queue for queue, _ in said} == set(QUEUES)
        assert not accusations(said)
        assert not unsure(said)


class Load:
    """Publishers and workers of three queues, each in a thread, until they are told to end or lose their broker."""

    QUEUES = {"plain": {}, "levels": {"x-max-priority": 4}, "limited": {"x-delivery-limit": 3}}

    def __init__(self, port):
        self.port, self.ends = port, threading.Event()
        self.published = dict.fromkeys(self.QUEUES, 0)
        self.threads, self.faults = [], []
        first = Publisher(port)
        for name, arguments in self.QUEUES.items():
            first.channels[0].queue_declare(name, durable=True, arguments={"x-order-journal": True} | arguments)
        first.close()
        for name in self.QUEUES:
            self.run(lambda: Publisher(port), partial(self.publish, name))
            for prefetch in (1, 7):
                self.run(partial(Worker, port, name, prefetch, f"{name}-{prefetch}"), self.work)

    def run(self, make, step):
        self.threads.append(threading.Thread(target=self._run, args=(make, step), daemon=True))
        self.threads[-1].start()

    def _run(self, make, step):
        try:
            client = make()
            try:
                while not self.ends.is_set():
                    step(client)
                client.close()
            except pika.exceptions.AMQPError:
                drain(client.connection)
                assert self.ends.is_set()
        except BaseException as fault:
            self.faults.append(fault)

    def publish(self, name, publisher):
        number = self.published[name]
        publisher.publish(name, range(number, number + 20), octets=600, priority=lambda number: number * 7 % 5)
        self.published[name] += 20

    def work(self, worker):
        worker.connection.process_data_events(0.02)
        held = len(worker.held)
        if not held:
            return
        last = worker.held[-1][1]
        is_full = held == worker.prefetch       # Then no delivery is on its way, of which the tag would be void.
        if last % 41 == 0 and is_full:
            worker.recover()
        elif last % 59 == 0 and is_full:
            worker.reopen()
        else:
            worker.work(held, lambda number, again: {2: "nack", 5: "reject", 9: "requeue"}.get(number % 23, "ack"))

    def wait_for(self, count):
        """Until so many messages more have been published to each queue."""
        wanted = {name: value + count for name, value in self.published.items()}
        tick = threading.Event()
        while any(self.published[name] < value for name, value in wanted.items()):
            assert not self.faults, self.faults
            tick.wait(0.01)

    def end(self):
        self.ends.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.faults, self.faults


@pytest.mark.parametrize("name", ["plain", "levels", "limited"])
def test_a_broker_under_load_is_never_accused(make_broker, name):
    with make_broker(*FLAGS) as broker:
        load = Load(broker.port)
        wrong = {}
        for _ in range(LOOKS):
            load.wait_for(40)
            wrong |= {key: row for key, row in accusations(ask(broker.directory)).items() if key[0] == name}
        load.end()
    assert not wrong


def test_a_broker_that_was_killed_under_load_is_not_accused(make_broker):
    broker = make_broker(*FLAGS)
    for _ in range(1):
        broker.start()
        load = Load(broker.port)
        load.wait_for(200)
        load.ends.set()
        broker.kill()
        load.end()
        assert not accusations(ask(broker.directory))
    broker.start()
    said = ask(broker.directory)
    assert not accusations(said)
    assert not unsure(said)

"""Rates between samples, and the history."""

import asyncio

from brokerd.management import samples
from brokerd.management.samples import Samples, flat, rate_between


class Broker:
    """Answers "node show" with the next number."""

    def __init__(self):
        self.number = 0

    async def ask(self, verb, fields):
        assert verb == "node show"
        self.number += 10
        return {"name": "n", "up": True, "message_stats": {"publish": self.number}}


def test_numbers_are_found_by_dotted_names():
    assert flat({"a": 1, "b": {"c": 2.5, "d": {"e": 3}}, "f": "x", "g": True}) == {"a": 1, "b.c": 2.5, "b.d.e": 3}


def test_a_rate_is_a_difference_and_a_counter_that_began_anew_has_none():
    assert rate_between(10, 30, 5) == 4.0
    assert rate_between(30, 10, 5) == 0.0
    assert rate_between(10, 30, 0) == 0.0


def test_the_history_gives_rates_and_series(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(samples.time, "time", lambda: now[0])

    async def run():
        made = Samples(Broker())
        for _ in range(4):
            await made.take()
            now[0] += 5
        return made

    made = asyncio.run(run())
    assert made.rate("message_stats.publish") == 2.0
    assert made.rate("nothing") == 0.0
    assert made.series("message_stats.publish", 60, 5) == [(1015.0, 40), (1010.0, 30), (1005.0, 20), (1000.0, 10)]
    assert made.series("message_stats.publish", 60, 10) == [(1015.0, 40), (1005.0, 20)]
    assert made.series("message_stats.publish", 5, 5) == [(1015.0, 40), (1010.0, 30)]


def test_rates_of_a_thing_need_two_lists_that_lie_apart(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(samples.time, "monotonic", lambda: now[0])
    made = Samples(None)
    assert made.rates_of("q", {"publish": 100}) == {"publish": 0.0}
    now[0] = 1.0
    assert made.rates_of("q", {"publish": 150}) == {"publish": 50.0}
    now[0] = 5.0
    assert made.rates_of("q", {"publish": 200}) == {"publish": 20.0}
    now[0] = 7.0
    assert made.rates_of("q", {"publish": 340}) == {"publish": 34.286}    # Since 0.0: 5.0 is too near.
    now[0] = 1000.0
    made._forget()
    assert made.rates_of("q", {"publish": 300}) == {"publish": 0.0}


def test_followers_get_the_last_sample_at_once_and_then_each():
    async def run():
        made = Samples(Broker())
        await made.take()
        follower = made.follow()
        first = await anext(follower)
        second = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0)
        await made.take()
        return first, await second

    (one, first), (two, second) = asyncio.run(run())
    assert (one, two) == (1, 2)
    assert (first["message_stats"], second["message_stats"]) == ({"publish": 10}, {"publish": 20})
    assert second["rates"]["message_stats.publish"] > 0


def test_an_overview_costs_the_broker_a_hundredth_of_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(samples.time, "monotonic", lambda: now[0])

    class Slow(Broker):
        async def ask(self, verb, fields):
            now[0] += 0.01
            return await super().ask(verb, fields)

    async def run():
        broker = Slow()
        made = Samples(broker)
        await made.recent()
        now[0] += 0.5
        await made.recent()
        before = broker.number
        now[0] += 0.6
        await made.recent()
        return before, broker.number

    assert asyncio.run(run()) == (10, 20)


def test_the_counters_of_an_idle_thing_are_kept_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(samples.time, "monotonic", lambda: now[0])
    made = Samples(None)
    for now[0] in (0.0, 5.0, 10.0):
        assert made.rates_of("q", {"publish": 100}) == {"publish": 0.0}
    _, old, latest, newest = made._things["q"]
    assert (old is newest, latest) == (True, 10.0)

"""Answers that took long are given again for a while, and never beyond a change."""

import asyncio
import weakref

import pytest
from starlette.responses import Response

from brokerd.management import again, rabbit_change, rabbit_messages, rabbit_read, v2
from brokerd.management.again import LARGE_OCTETS, OCTETS_MAX, QUICK_SECONDS, SECONDS_MAX, TIMES, Again
from brokerd.management.answers import Fault
from brokerd.management.app import App, Route, Services
from brokerd.management.logins import Login
from brokerd.management.routes import Routes


class Kitchen:
    """Makes answers, each of which takes ``takes`` seconds of the test's clock; ``gate``: what it waits for."""

    def __init__(self):
        self.now, self.takes, self.made, self.gate, self.status = 0.0, 1.0, 0, None, 200
        self.size = LARGE_OCTETS
        self.again = Again(lambda: self.now)

    async def make(self):
        self.made += 1
        number = self.made
        if self.gate is not None:
            await self.gate.wait()
        self.now += self.takes
        if self.status is None:
            raise ValueError(f"answer {number}")
        return Response(str(number).rjust(self.size, "0").encode(), self.status)

    async def ask(self, key="list"):
        return int((await self.again.answer(key, self.make)).body[-9:])


@pytest.fixture
def kitchen():
    return Kitchen()


def run(steps):
    return asyncio.run(steps())


def test_an_answer_that_was_made_quickly_is_not_given_again(kitchen):
    async def steps():
        kitchen.takes = QUICK_SECONDS / 2
        assert [await kitchen.ask() for _ in range(3)] == [1, 2, 3]

    run(steps)


def test_a_small_answer_is_not_given_again_however_long_it_took(kitchen):
    async def steps():
        kitchen.size = LARGE_OCTETS - 1
        assert [await kitchen.ask() for _ in range(3)] == [1, 2, 3]

    run(steps)


def test_a_slow_answer_holds_for_a_multiple_of_the_time_that_it_took(kitchen):
    async def steps():
        kitchen.takes = 0.1
        assert await kitchen.ask() == 1
        kitchen.now += TIMES * 0.1 - 0.01
        assert await kitchen.ask() == 1
        kitchen.now += 0.02
        assert await kitchen.ask() == 2

    run(steps)


def test_no_answer_holds_for_longer_than_the_longest_time(kitchen):
    async def steps():
        kitchen.takes = 30.0
        assert await kitchen.ask() == 1
        kitchen.now += SECONDS_MAX
        assert await kitchen.ask() == 2

    run(steps)


def test_who_asks_for_something_else_gets_something_else(kitchen):
    async def steps():
        assert [await kitchen.ask("one"), await kitchen.ask("other"), await kitchen.ask("one")] == [1, 2, 1]

    run(steps)


def test_behind_a_change_nothing_is_given_again(kitchen):
    async def steps():
        assert await kitchen.ask() == 1
        kitchen.again.end_all()
        assert await kitchen.ask() == 2
        assert await kitchen.ask() == 2

    run(steps)


def test_an_answer_that_was_begun_before_a_change_is_not_given_to_those_who_ask_behind_it(kitchen):
    async def steps():
        await kitchen.ask()             # It is known to be slow from now on.
        kitchen.now += SECONDS_MAX
        kitchen.gate = asyncio.Event()
        before = asyncio.create_task(kitchen.ask())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kitchen.again.end_all()
        behind = asyncio.create_task(kitchen.ask())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kitchen.gate.set()
        assert [await before, await behind, await kitchen.ask()] == [2, 3, 3]

    run(steps)


def test_all_who_ask_while_a_slow_answer_is_made_get_that_one_also_if_the_first_of_them_goes(kitchen):
    async def steps():
        await kitchen.ask()
        kitchen.now += SECONDS_MAX
        kitchen.gate = asyncio.Event()
        first, *others = [asyncio.create_task(kitchen.ask()) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        kitchen.gate.set()
        assert await asyncio.gather(*others) == [2] * 4

    run(steps)


def test_a_fault_is_told_to_all_who_wait_and_is_not_kept(kitchen):
    async def steps():
        await kitchen.ask()
        kitchen.now += SECONDS_MAX
        kitchen.status = None
        faults = await asyncio.gather(*(kitchen.ask() for _ in range(2)), return_exceptions=True)
        assert [str(each) for each in faults] == ["answer 2"] * 2
        kitchen.status = 200
        assert await kitchen.ask() == 3

    run(steps)


def test_a_refusal_is_not_kept(kitchen):
    async def steps():
        kitchen.status = 503
        assert [await kitchen.ask(), await kitchen.ask()] == [1, 2]

    run(steps)


def test_answers_that_are_kept_have_a_bound_together_and_those_that_are_over_make_room(kitchen):
    async def steps():
        kitchen.size = OCTETS_MAX // 2 + 1
        assert [await kitchen.ask("one"), await kitchen.ask("other"), await kitchen.ask("other")] == [1, 2, 3]
        assert await kitchen.ask("one") == 1
        kitchen.now += SECONDS_MAX
        assert [await kitchen.ask("other"), await kitchen.ask("other")] == [4, 4]

    run(steps)


def test_clients_that_ask_for_the_same_for_the_first_time_at_one_moment_take_room_once(kitchen):
    async def steps():
        kitchen.size = OCTETS_MAX // 2
        kitchen.gate = asyncio.Event()
        both = [asyncio.create_task(kitchen.ask("one")) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kitchen.gate.set()
        assert await asyncio.gather(*both) == [1, 2]
        assert [await kitchen.ask("other"), await kitchen.ask("other")] == [3, 3]

    run(steps)


def test_an_answer_leaves_memory_when_it_is_over_though_nobody_asks_again(kitchen, monkeypatch):
    monkeypatch.setattr(again, "SECONDS_MAX", 0.01)

    async def steps():
        gone = asyncio.Event()
        weakref.finalize(await kitchen.again.answer("list", kitchen.make), gone.set)
        assert not gone.is_set()
        kitchen.now += 1
        async with asyncio.timeout(60):
            await gone.wait()

    run(steps)


class Door:
    """The application with one list that takes long, and routes beside it; ``ask`` returns what the client gets."""

    def __init__(self):
        self.now, self.made, self.user = 0.0, 0, "ann"
        services = Services(None, self, None, {}, Again(lambda: self.now))
        self.app = App(services, Routes([
            ("GET", "/list", Route(self.make, again=True)),
            ("PUT", "/thing", Route(self.change)),
            ("POST", "/publish", Route(self.change, changes=False)),
            ("POST", "/refused", Route(self.refuse)),
        ]))

    async def who(self, method, headers, address):
        return Login(self.user, ("management",))

    async def make(self, call):
        self.made += 1
        self.now += 1.0
        return Response(f"{self.made} for {call.login.user}".ljust(LARGE_OCTETS))

    async def change(self, call):
        return Response("")

    async def refuse(self, call):
        raise Fault(409, "half of it was done")

    async def ask(self, path, method="GET", query=b""):
        parts = []

        async def send(message):
            parts.append(message.get("body", b""))

        await self.app({"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": [],
                        "query_string": query, "client": None, "scheme": "http"}, None, send)
        return b"".join(parts).decode().rstrip()


def test_a_list_is_made_again_behind_a_change_and_behind_one_that_was_refused_half_way_and_not_behind_a_publish():
    async def steps():
        door = Door()
        assert [await door.ask("/list"), await door.ask("/list")] == ["1 for ann"] * 2
        await door.ask("/publish", "POST")
        assert await door.ask("/list") == "1 for ann"
        await door.ask("/thing", "PUT")
        assert await door.ask("/list") == "2 for ann"
        await door.ask("/refused", "POST")
        assert await door.ask("/list") == "3 for ann"

    run(steps)


def test_users_and_queries_have_answers_of_their_own():
    async def steps():
        door = Door()
        assert await door.ask("/list") == "1 for ann"
        assert await door.ask("/list", query=b"page=2") == "2 for ann"
        door.user = "bob"
        assert await door.ask("/list") == "3 for bob"

    run(steps)


def test_only_publishes_and_reads_leave_the_lists_as_they_are():
    rows = [*rabbit_read.routes(), *rabbit_change.routes(), *rabbit_messages.routes(), *v2.routes()]
    silent = {path for method, path, route in rows if route.changes is False and not path.startswith("/api/v2/")}
    assert silent == {"/api/exchanges/{vhost}/{exchange}/publish", "/api/queues/{vhost}/{queue}/get",
                      "/api/queues/{vhost}/{queue}/stream"}
    of_verb = {path: route.changes for method, path, route in rows if path.startswith("/api/v2/") and method == "POST"}
    assert (of_verb["/api/v2/queue/list"], of_verb["/api/v2/queue/delete"]) == (False, True)
    assert not any(route.again for method, _, route in rows if method != "GET")

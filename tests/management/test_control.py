"""The client of the control socket, against a server that behaves in every way."""

import asyncio
import json
import os

import pytest

from brokerd.management import control
from brokerd.management.control import Control, Refused, Unavailable


def served(tmp_path, answer, test):
    """Run test(control) with a server that calls answer(request, writer) for each line."""
    clients = []

    async def client(reader, writer):
        clients.append(asyncio.current_task())
        try:
            while line := await reader.readline():
                await answer(json.loads(line), writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def run():
        server = await asyncio.start_unix_server(client, os.path.join(tmp_path, "control.sock"))
        asked = Control(str(tmp_path))
        try:
            return await test(asked)
        finally:
            asked.close()
            server.close()
            await asyncio.gather(*clients)
            await asyncio.sleep(0)  # Each side hears of its end.

    return asyncio.run(run()), len(clients)


async def echo(request, writer):
    writer.write(b'{"progress": {}}\n' + json.dumps({"result": request}).encode() + b"\n")


def test_an_answer_follows_the_progress_of_its_request(tmp_path):
    async def test(asked):
        assert await asked.ask("queue list", {"vhost": "/"}, "alice", "10.0.0.7") == {
            "verb": "queue list", "vhost": "/", "as": "alice", "by": {"face": "HTTP", "address": "10.0.0.7"}}
        return await asked.ask("node show", {})

    assert served(tmp_path, echo, test) == ({"verb": "node show"}, 1)


def test_requests_share_a_few_connections(tmp_path):
    async def test(asked):
        found = await asyncio.gather(*(asked.ask("x", {"n": n}) for n in range(100)))
        return [each["n"] for each in found]

    numbers, connections = served(tmp_path, echo, test)
    assert numbers == list(range(100))
    assert connections <= control.CONNECTIONS


def test_a_refusal_has_its_code(tmp_path):
    async def refuse(request, writer):
        writer.write(b'{"error": "no queue \'x\'", "code": 404}\n')

    async def test(asked):
        with pytest.raises(Refused, match="no queue 'x'") as refused:
            await asked.ask("queue show", {})
        return refused.value.code

    assert served(tmp_path, refuse, test)[0] == 404


def test_names_that_are_no_utf8_come_whole(tmp_path):
    async def test(asked):
        return await asked.ask("x", {"name": "\udcff"})

    assert served(tmp_path, echo, test)[0]["name"] == "\udcff"


def test_a_request_without_an_answer_ends_and_its_connection_too(tmp_path):
    async def silent_at_first(request, writer):
        if request["verb"] != "slow":
            await echo(request, writer)

    async def test(asked):
        with pytest.raises(Unavailable, match="slow: no answer"):
            await asked.ask("slow", {}, seconds=0.05)
        return await asked.ask("quick", {})

    assert served(tmp_path, silent_at_first, test) == ({"verb": "quick"}, 2)


def test_a_broker_that_goes_away_is_said_so(tmp_path):
    async def close(request, writer):
        writer.close()

    async def test(asked):
        with pytest.raises(Unavailable, match="the broker went away"):
            await asked.ask("x", {})

    served(tmp_path, close, test)


def test_a_broker_that_is_not_there_is_said_so(tmp_path):
    async def run():
        with pytest.raises(Unavailable, match="cannot be reached"):
            await Control(str(tmp_path)).ask("x", {})

    asyncio.run(run())


def test_requests_that_wait_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "WAITING_MAX", 3)

    async def never(request, writer):
        pass

    async def test(asked):
        waiting = [asyncio.ensure_future(asked.ask("x", {})) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="3 requests wait"):
            await asked.ask("x", {})
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    served(tmp_path, never, test)


@pytest.mark.parametrize("octets", [b"{", b"\xff", b"[" * 100_000, b'{"a": 1}x'])
def test_what_is_no_json_is_a_value_error(octets):
    with pytest.raises(ValueError):
        control.decode(octets)


def test_requests_that_wait_for_something_hold_up_no_others(tmp_path):
    async def test(asked):
        go, all_wait, waiting = asyncio.Event(), asyncio.Event(), []
        more = control.CONNECTIONS + 1

        async def answer(request, writer):
            if request.get("wait"):
                waiting.append(request["wait"])
                if len(waiting) == more:
                    all_wait.set()
                await go.wait()
            await echo(request, writer)

        served_by.append(answer)
        patient = [asyncio.create_task(asked.ask_patiently("message receive", {"n": n, "wait": 20}, "alice", "",
                                                           seconds=60, grant="")) for n in range(more)]
        await all_wait.wait()
        found = await asked.ask("node show", {})        # Before, it waited for the end of one of them.
        assert not any(one.done() for one in patient)
        go.set()
        assert [one["n"] for one in await asyncio.gather(*patient)] == list(range(more))
        assert waiting == [20] * more
        return found

    served_by = []

    async def answer(request, writer):
        await served_by[0](request, writer)

    assert served(tmp_path, answer, test)[0] == {"verb": "node show"}


def test_a_request_that_finds_no_connection_to_wait_on_asks_once_without_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "PATIENT_CONNECTIONS", 1)

    async def test(asked):
        async def receive(wait):
            return await asked.ask_patiently("message receive", {"wait": wait}, "alice", "", seconds=60, grant="")

        await asked._patient.acquire()
        assert (await receive(0.01))["wait"] == 0
        asked._patient.release()
        assert (await receive(0.5))["wait"] == 0.5
        assert (await receive("text"))["wait"] == "text"    # The broker says what is wrong with it.

    served(tmp_path, echo, test)

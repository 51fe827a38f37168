import asyncio
import os
import threading

import uvloop

from brokerd.server.threads import FileSyncs, SlowThread


def opened(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"octets")
    return fd, str(path)


def run(test):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


async def synced(syncs, files):
    end = asyncio.get_running_loop().create_future()
    syncs.begin(files, False, end.set_result)
    return await asyncio.wait_for(end, 30)


def test_a_sync_tells_its_end_on_the_loop(tmp_path):
    async def test():
        syncs = FileSyncs(asyncio.get_running_loop())
        for n in range(3):
            assert await synced(syncs, [opened(tmp_path / str(n)), opened(tmp_path / f"{n}.more")]) is None
        syncs.stop()

    run(test)


def test_a_sync_that_fails_tells_which_file(tmp_path):
    async def test():
        syncs = FileSyncs(asyncio.get_running_loop())
        ours, theirs = os.pipe()
        error = await synced(syncs, [opened(tmp_path / "a"), (ours, "b")])
        assert (type(error), error.filename) == (OSError, "b")
        assert await synced(syncs, [opened(tmp_path / "a")]) is None
        syncs.stop()
        os.close(theirs)

    run(test)


def test_the_next_sync_may_begin_at_the_end_of_the_last(tmp_path):
    async def test():
        syncs = FileSyncs(asyncio.get_running_loop())
        end, errors = asyncio.get_running_loop().create_future(), []

        def done(error):
            errors.append(error)
            if len(errors) == 20:
                end.set_result(None)
            else:
                syncs.begin([opened(tmp_path / "a")], False, done)

        syncs.begin([opened(tmp_path / "a")], False, done)
        await asyncio.wait_for(end, 30)
        assert errors == [None] * 20
        syncs.stop()

    run(test)


def test_the_slow_thread_begins_with_its_first_work_and_ends():
    async def test():
        loop = asyncio.get_running_loop()
        slow, before = SlowThread(loop.call_soon_threadsafe), threading.active_count()
        slow.stop()
        assert threading.active_count() == before
        end = loop.create_future()
        slow.submit(lambda: 1 // 0, end.set_result)
        assert isinstance(await asyncio.wait_for(end, 30), ZeroDivisionError)
        assert threading.active_count() == before + 1
        slow.stop()
        assert threading.active_count() == before

    run(test)

"""Jobs: between loop and thread, a step at a time, closed when nobody wants them any more."""

import json

import pytest
from tests.operations.stand_in import Thread

from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Running, encoded, in_thread


class Job:
    def __init__(self, steps):
        self._steps = steps
        self.over = 0

    def steps(self):
        return self._steps

    def clean_up(self):
        self.over += 1


class Run:
    """A job on a loop and a thread that are worked by hand; ``heard`` is all that was said, ``where`` who did what."""

    def __init__(self, steps):
        self.heard, self.loop, self.thread = [], [], Thread()
        self.job = Job(steps)
        self.running = Running(self.job, submit=self.thread.submit, later=self.loop.append,
                               progress=self.heard.append, done=lambda *end: self.heard.append(end))

    def step(self):
        if self.loop:
            self.loop.pop(0)()
            return "loop"
        if self.thread.jobs:
            self.thread.run()
            return "thread"
        return None

    def to_end(self):
        where = []
        while (place := self.step()) is not None:
            where.append(place)
        return where


def test_a_job_begins_on_the_loop_and_goes_where_it_says():
    done = []

    def steps():
        done.append("begun")
        yield IN_THREAD
        done.append("in the thread")
        yield {"at": 1}
        done.append("still there")
        yield ON_LOOP
        done.append("back")
        return {"answer": 42}

    run = Run(steps())
    assert not done
    assert run.to_end() == ["loop", "loop", "thread", "loop", "thread", "loop"]
    assert done == ["begun", "in the thread", "still there", "back"]
    assert (run.heard, run.job.over) == ([{"at": 1}, ({"answer": 42}, None)], 1)


def test_between_two_steps_in_the_thread_somebody_elses_work_has_its_turn():
    def steps():
        yield IN_THREAD
        for number in range(3):
            yield {"at": number}
        return {}

    run = Run(steps())
    run.step(), run.step()
    order = []
    run.thread.submit(lambda: order.append("other"), lambda error: None)
    run.to_end()
    assert order == ["other"]
    assert len(run.heard) == 4


@pytest.mark.parametrize("place", [IN_THREAD, ON_LOOP])
def test_what_a_job_raises_is_its_answer(place):
    def steps():
        yield place
        raise ValueError("no")

    run = Run(steps())
    run.to_end()
    (answer, error), = run.heard
    assert (answer, str(error), run.job.over) == (None, "no", 1)


@pytest.mark.parametrize("steps_before", range(5))
def test_a_job_that_is_not_wanted_any_more_is_closed_in_the_thread_and_says_nothing(steps_before):
    undone = []

    def steps():
        try:
            yield IN_THREAD
            yield ON_LOOP
            yield IN_THREAD
            yield IN_THREAD
            undone.append("finished")
        finally:
            undone.append("undone")
        return {}

    run = Run(steps())
    for _ in range(steps_before):
        run.step()
    assert not undone
    run.running.cancel()
    run.running.cancel()
    assert not undone, "not on the loop"
    run.to_end()
    assert undone in ([], ["undone"]), "a job that has not begun has nothing to undo"
    assert (run.heard, run.job.over, run.running.over) == ([], 1, True)


def test_a_job_that_is_over_cannot_be_cancelled():
    def steps():
        yield IN_THREAD
        return {}

    run = Run(steps())
    run.to_end()
    run.running.cancel()
    assert (run.to_end(), run.job.over) == ([], 1)


@pytest.mark.parametrize("answer", [
    {"items": []}, {"items": [{"a": 1, "b": "ä\n"}], "next": 4}, {"first": [1], "second": [[2], {}]},
    {"name": "q", "totals": {"a": [1, 2]}, "items": [1, "x", None]},
])
def test_an_answer_that_is_encoded_in_pieces_is_the_same_json(answer):
    run = Run(encoded(answer))
    run.to_end()
    [(found, error)] = run.heard
    assert error is None
    assert json.loads(b"".join(found.parts)) == answer
    assert b"".join(found.parts) == json.dumps(answer).encode()


def test_a_long_answer_is_encoded_in_more_turns_than_one(monkeypatch):
    now = iter(range(0, 1_000_000_000, 250_000))       # a quarter of a millisecond passes with each row
    monkeypatch.setattr("brokerd.operations.jobs.PIECE_NS", 1_000_000)
    monkeypatch.setattr("brokerd.operations.jobs.monotonic_ns", lambda: next(now))
    run = Run(encoded({"items": list(range(100))}))
    turns = run.to_end()
    assert 20 <= len(turns) <= 40
    assert set(turns) == {"loop"}


@pytest.mark.parametrize("error", [OSError("the disk is full"), ValueError("a fault")])
def test_an_error_of_work_in_the_thread_is_met_on_the_loop(error):
    met = []

    def work():
        raise error

    def steps():
        try:
            yield from in_thread(work)
        except (OSError, ValueError) as caught:
            met.append(caught)
            return "went on"

    run = Run(steps())
    while (place := run.step()) == "loop":
        pass
    assert (place, met) == ("thread", [])
    assert set(run.to_end()) == {"loop"}
    assert met == [error]
    assert run.heard == [("went on", None)]

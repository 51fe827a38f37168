"""This machine's processors come to the verdicts of one process, however the work is shared out."""

import os
import signal

import pytest
from tests.audit import writer

from brokerd.audit import AuditError
from brokerd.audit.files import open_source
from brokerd.audit.scan import Options
from brokerd.audit.verdicts import audit
from brokerd.auditor import here


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Seven queues; one is large beside the others, one has levels and faults, one has no segments."""
    folder = tmp_path_factory.mktemp("data")
    cut = writer.Options(segment_messages=50, kept=True)
    writer.write_queue(folder, writer.swapped(900, 20, 99), cut, queue="large", folder="q0")
    for number in range(1, 5):
        writer.write_queue(folder, writer.simple_level(40 + number), cut, queue=f"q{number}", folder=f"q{number}")
    levels = {0: writer.swapped(120, 49), 3: writer.simple_level(60, first_seq=200)}
    writer.write_queue(folder, levels, cut, queue="levels", folder="q5")
    writer.write_queue(folder, writer.simple_level(0), writer.Options(segment_messages=50), queue="empty", folder="q6")
    return str(folder)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shared_out_work_has_the_verdicts_of_one_process(root, monkeypatch, workers):
    monkeypatch.setattr(here, "PACK_OCTETS", 20_000)
    queues, read = open_source(root).queues(), []
    tasks = here.tasks_of(queues)
    assert {bool(task.triples) for task in tasks} == {True, False}, "all queues are of one kind"
    judged = here.judge_all(root, queues, workers=workers, progress=read.append)
    assert judged == audit(open_source(root))
    assert sum(read) == sum(triple.octets for queue in queues for triple in queue.triples)
    some = Options(audits=frozenset({"damage"}))
    assert here.judge_all(root, queues, some, workers=workers) == audit(open_source(root), some)


def test_the_work_holds_every_segment_once_and_large_queues_come_first(root, monkeypatch):
    monkeypatch.setattr(here, "PACK_OCTETS", 20_000)
    monkeypatch.setattr(here, "PACK_QUEUES", 2)
    queues = open_source(root).queues()
    tasks = here.tasks_of(queues)
    whole = [index for task in tasks if not task.triples for index in task.queues]
    parts = [triple for task in tasks for triple in task.triples]
    given = parts + [triple for index in whole for triple in queues[index].triples]
    assert sorted(given) == sorted(triple for queue in queues for triple in queue.triples)
    assert {task.queues for task in tasks if task.triples}.isdisjoint({(index,) for index in whole})
    assert [bool(task.triples) for task in tasks] == sorted((bool(task.triples) for task in tasks), reverse=True)
    assert max(len(task.queues) for task in tasks) == 2
    assert sum(task.octets for task in tasks) == sum(triple.octets for triple in given)


def test_little_data_needs_no_other_process(root, monkeypatch):
    monkeypatch.setattr(here, "processes", lambda _: pytest.fail("another process was started"))
    assert len(here.judge_all(root, open_source(root).queues())) == 7
    assert here.useful_workers(here.ALONE_OCTETS) == min(len(os.sched_getaffinity(0)), here.WORKERS_MAX)


def kill_itself(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_told_in_a_line(root, monkeypatch):
    monkeypatch.setattr(here, "_judge_some", kill_itself)
    with pytest.raises(AuditError, match=r"ended from outside: perhaps memory is short \(there were 2 of them\)"):
        here.judge_all(root, open_source(root).queues(), workers=2)


def test_an_interrupt_ends_the_other_processes(root):
    def interrupt(_):
        raise KeyboardInterrupt

    before = here.active_children()
    with pytest.raises(KeyboardInterrupt):
        here.judge_all(root, open_source(root).queues(), workers=2, progress=interrupt)
    assert here.active_children() == before

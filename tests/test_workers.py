"""tests.workers: what tests come to in forks of the process that collected them, and what becomes of a worker's end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workers import FIRST, ONE_JVM, parts_of

ROOT = Path(__file__).resolve().parent.parent
PASSES = "def test_passes():\n    pass\n"


@pytest.fixture
def run(tmp_path):
    """Run pytest over files of these texts, in workers; returns its status and what it printed."""
    def run(*options, workers=2, **files):
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        done = subprocess.run([*pytest_command(workers), *options], cwd=tmp_path, capture_output=True, text=True,
                              env=environment())
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


def pytest_command(workers):
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:brokerd", "-p", "tests.workers",
            "--workers", str(workers), "--basetemp=temporary"]


def environment():
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "120"}


def counted(said):
    return dict(reversed(each.split()) for each in said.splitlines()[-1].partition(" in ")[0].split(", "))


def test_each_test_is_run_once_and_reported_as_what_it_came_to(run):
    text = """
import pytest, warnings
@pytest.mark.parametrize("number", range(20))
def test_passes(number): pass
def test_fails():
    print("this was printed")
    assert [1, 2] == [1, 3]
@pytest.mark.skip(reason="for this reason")
def test_skips(): pass
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken():
    yield
    raise ValueError("torn down")
def test_torn_down(broken): pass
def test_warns(): warnings.warn("have a care")
"""
    status, said = run("-rs", **{f"f{number}": text for number in range(5)})
    assert status == 1
    assert counted(said) == {"passed": "110", "failed": "5", "skipped": "5", "xfailed": "5", "errors": "5",
                             "warnings": "5"}
    assert said.count("At index 1 diff: 2 != 3") == said.count("this was printed\n") == 5
    assert said.count("ValueError: torn down") >= 5
    assert said.count("have a care") >= 5
    assert "for this reason" in said


def test_a_worker_runs_a_file_as_a_whole_and_workers_share_files_out(run, tmp_path):
    (tmp_path / "conftest.py").write_text("""
import os, pytest
@pytest.fixture(scope="session")
def session(tmp_path_factory):
    yield tmp_path_factory.mktemp("folder")
    open(f"{os.environ['NOTES']}/ends-{os.getpid()}", "x")
""")
    text = """
import os, time, pathlib, pytest
@pytest.mark.parametrize("number", range(3))
def test_notes(session, number):
    session.joinpath(f"{pathlib.Path(__file__).stem}-{number}").touch()
    with open(f"{os.environ['NOTES']}/{os.getpid()}", "a") as file:
        print(pathlib.Path(__file__).stem, file=file)
    while len([name for name in os.listdir(os.environ["NOTES"]) if name.isdigit()]) < 2: time.sleep(0.01)
"""
    notes = tmp_path / "notes"
    notes.mkdir()
    os.environ["NOTES"] = str(notes)
    try:
        status, said = run(**{f"f{number}": text for number in range(6)})
    finally:
        del os.environ["NOTES"]
    assert (status, counted(said)) == (0, {"passed": "18"}), said
    workers = {path.name: path.read_text().split() for path in notes.iterdir() if path.name.isdigit()}
    assert len(workers) == 2
    files = [file for run_ in workers.values() for file in run_[::3]]
    assert sorted(files) == [f"test_f{number}" for number in range(6)]
    assert all(run_ == [file for file in run_[::3] for _ in range(3)] for run_ in workers.values())
    assert {path.name for path in notes.iterdir() if "-" in path.name} == {f"ends-{pid}" for pid in workers}
    assert len([*(tmp_path / "temporary").glob("worker*/folder0/test_*")]) == 18


@pytest.mark.parametrize(("end", "told"), [("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
                                           ("os._exit(3)", "status 3")])
def test_a_test_in_which_its_worker_ends_has_failed_and_the_others_are_run(run, end, told):
    ends = f"import os, signal\ndef test_one(): pass\ndef test_ends(): {end}\ndef test_other(): pass\n"
    status, said = run(a=PASSES, b=ends, c=PASSES, workers=1)
    assert (status, counted(said)) == (1, {"passed": "4", "failed": "1"})
    assert f"the worker ended with {told} while it ran this test" in said
    assert re.search(r"FAILED test_b.py::test_ends", said)
    # The last test of a file, when the next file is promised to the same worker
    status, said = run(b=ends.rpartition("def")[0], workers=1)
    assert (status, counted(said)) == (1, {"passed": "3", "failed": "1"})


def test_the_first_failure_is_the_last_where_pytest_is_to_stop_there(run):
    status, said = run("-x", workers=1, a="def test_fails(): assert False\n" + PASSES, b=PASSES)
    assert status == 1
    assert counted(said) == {"failed": "1"}


def test_what_cannot_be_collected_is_an_error_and_nothing_is_run(run):
    status, said = run(a="import there_is_no_such_module\n", b=PASSES)
    assert (status, counted(said)) == (2, {"error": "1"})


def test_a_worker_ends_with_the_process_that_collected(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_waits.py").write_text(
        "import os\ndef test_waits():\n    open('pipe', 'w').write(str(os.getpid()))\n    open('pipe').read()\n")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(pytest_command(1), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        with open(tmp_path / "pipe") as pipe:
            worker = int(pipe.read())
        fd = os.pidfd_open(worker)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with open(tmp_path / "pipe", "w"):
            pass                                # The test goes on, and its report finds no reader.
        with os.fdopen(fd):
            assert ends(fd)


def ends(pidfd):
    from select import POLLIN, poll
    waiting = poll()
    waiting.register(pidfd, POLLIN)
    return waiting.poll(60_000)


def test_what_takes_longest_comes_first_and_one_worker_has_the_jvm():
    nodeids = ["tests/test_a.py::test_1", "tests/test_a.py::test_2", f"{ONE_JVM}test_x.py::test_1",
               f"{FIRST[1]}test_b.py::test_1", f"{ONE_JVM}test_y.py::test_1", "tests/test_c.py::test_1"]
    assert parts_of(nodeids) == [[2, 4], [3], [0, 1], [5]]


def test_what_is_made_once_is_made_by_one_worker_and_had_by_all(run, tmp_path):
    text = f"""
from tests.workers import make_once
def test_has_it(request):
    def make(folder):
        with open({str(tmp_path / "made")!r}, "a") as file:
            file.write("once ")
        (folder / "file").write_text("whole")
    assert (make_once(request.config, "thing", make) / "file").read_text() == "whole"
    assert (make_once(request.config, "thing", make) / "file").read_text() == "whole"
"""
    for workers in (0, 3):
        (tmp_path / "made").write_text("")
        status, _ = run(workers=workers, a=text, b=text, c=text)
        assert (status, (tmp_path / "made").read_text()) == (0, "once ")


def test_what_was_not_made_to_its_end_is_made_anew(run):
    text = """
import pytest
from tests.workers import make_once
def fail(folder):
    (folder / "file").write_text("half")
    raise ValueError("broken")
def test_breaks_and_is_mended(request):
    with pytest.raises(ValueError, match="broken"):
        make_once(request.config, "thing", fail)
    assert list(make_once(request.config, "thing", lambda folder: None).iterdir()) == []
"""
    assert run(a=text)[0] == 0

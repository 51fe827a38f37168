"""The second chance that CI gives a few tests which failed: `.ci/again`, in a tree of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
AGAIN = ROOT / ".ci" / "again"
# Programs that tests use where they are, and that CI does not install: two are parts of RabbitMQ, large with its
# Erlang, a whole Java is large too, and systemd belongs to the machine.
NOT_IN_CI = {"java", "rabbitmqadmin", "epmd", "systemd-analyze"}


@pytest.fixture
def again(tmp_path):
    """Run `.ci/again` after these tests failed.  Returns its status and what it said on standard error."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(AGAIN, tmp_path / ".ci" / "again")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "from pathlib import Path\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert not 'always'\n"
        "def test_fails_the_fifth_time():\n"
        "    with Path('turns').open('a+') as turns:\n"
        "        turns.write('x')\n"
        "    assert len(Path('turns').read_text()) < 5\n")
    kept = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"

    def run(*failed):
        if failed:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(dict.fromkeys(failed, True)))
        # The plugins that are installed here take most of the time of six starts of pytest.
        ran = subprocess.run(["bash", tmp_path / ".ci" / "again"], stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
        return ran.returncode, ran.stderr

    return run


def test_a_test_that_passes_five_times_is_named_as_unsteady(again):
    assert again("tests/test_a.py::test_passes") == (
        0, ".ci/again: unsteady, to be mended: tests/test_a.py::test_passes\n")


@pytest.mark.parametrize("name", ["fails", "fails_the_fifth_time"])
def test_one_failure_in_five_turns_is_a_failure(again, name):
    status, said = again("tests/test_a.py::test_passes", f"tests/test_a.py::test_{name}")
    assert (status, said) == (1, "")


@pytest.mark.parametrize("name", ["tests/faults/test_a.py::test_passes", "tests/model/test_a.py::test_passes",
                                  "tests/plane/test_a.py::test_passes"])
def test_what_looks_for_rare_faults_has_no_second_chance(again, name):
    assert again(name) == (1, f".ci/again: {name} has no second chance\n")


@pytest.mark.parametrize(("names", "count"), [
    ([f"tests/test_{n}.py::test_passes" for n in range(4)], 4), ([f"tests/test_a.py::test_{n}" for n in range(13)], 13),
])
def test_failures_in_four_files_or_of_thirteen_tests_are_no_accident(again, names, count):
    assert again(*names) == (1, f".ci/again: {count} tests failed, which is no accident\n")


def test_a_run_that_failed_without_a_failed_test_stays_failed(again):
    assert again() == (1, ".ci/again: no test is known to have failed\n")


def test_ci_installs_each_program_without_which_tests_are_skipped():
    installed = set(re.findall(r"^need (\S+) ", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    asked = {name for file in (ROOT / "tests").rglob("*.py") if "node_modules" not in file.parts
             for name in re.findall(r'shutil\.which\("([\w-]+)"\)', file.read_text())}
    assert asked > {"promtool", "prometheus"}
    assert asked - installed == NOT_IN_CI

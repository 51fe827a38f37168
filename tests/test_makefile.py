"""The Makefile: what it needs, and that what takes long says so first.

A stand-in for Python notes what it is asked for, so that nothing is fetched or compiled here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("make", "sh", "gcc", "cc", "touch", "nproc", "find", "rm", "env", "echo")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not there")


@pytest.fixture
def tools(tmp_path):
    """A folder of the commands that a bare machine has; no others are in the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def make(tmp_path, tools):
    """Run make as on a machine with these tools and with a stand-in for Python in .venv.  Returns what it prints."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    stand_in = venv / "bin" / "python"
    stand_in.write_text('#!/bin/sh\necho "[python $*]${PYTHONDONTWRITEBYTECODE:+ that keeps no bytecode}"\n')
    stand_in.chmod(0o755)
    (venv / "bin" / "brokerd").symlink_to(stand_in)

    def run(*words):
        done = subprocess.run(
            [shutil.which("make"), "--no-print-directory", *words, f"VENV={venv}", f"PYTHON={sys.executable}"],
            cwd=ROOT, capture_output=True, text=True,
            env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/"), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    run.venv = venv
    return run


def test_git_is_not_needed(make, tools):
    assert not (tools / "git").exists()
    status, _, told = make("check-tools")
    assert (status, told) == (0, "")


def test_a_missing_compiler_is_told_in_one_line(make, tools):
    for name in ("gcc", "cc"):
        (tools / name).unlink(missing_ok=True)
    status, _, told = make("check-tools", "CC=gcc")
    assert status != 0
    assert told.splitlines()[0] == "brokerd needs a C compiler, and 'gcc' is not there: apt-get install gcc libc6-dev"


def test_the_first_run_says_before_it_installs_and_compiles_that_this_takes_a_while(make):
    status, said, told = make("run")
    assert (status, told) == (0, "")
    told_at = next(place for place, line in enumerate(said) if line.startswith("installing what brokerd needs"))
    assert "compiling the data plane: about" in said[told_at]
    assert told_at < next(place for place, line in enumerate(said) if "pip install" in line)
    assert sum("compiling" in line for line in said) == 1
    assert "-D ./data" in said[-1]


def test_a_changed_source_is_compiled_after_a_line_that_says_so(make):
    make("build")
    assert make("build") == (0, [], "")
    status, said, told = make("build", "--what-if", "src/brokerd/plane/core.pxi")
    assert (status, told) == (0, "")
    assert said == ["compiling the data plane: about a minute", "[python setup.py -q build_ext --inplace]"]

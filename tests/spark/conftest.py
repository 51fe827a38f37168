"""One Spark session for all tests of this folder, because it takes seconds to start.  The first use starts it."""

import os
import signal

import pytest

# In a short test, the JVM's optimising compiler and its threads for garbage cost more than they save.  Without that
# compiler the JVM has 48 MB for compiled code.  The tests need more, and once that is full the JVM compiles nothing.
os.environ.setdefault("SPARK_SUBMIT_OPTS",
                      "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m")


@pytest.fixture(scope="session")
def spark():
    pytest.importorskip("pyspark")
    from brokerd.spark.java import JavaError
    from brokerd.spark.session import session

    try:
        made = session("tests", "local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    except JavaError as error:
        pytest.skip(str(error))
    process = made.sparkContext._gateway.proc
    yield made
    made.stop()
    if process is not None:
        process.stdin.close()
        try:
            process.wait(120)
        except Exception:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

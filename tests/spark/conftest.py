"""One Spark for all tests of this folder: it takes seconds to start, and is started by the first that asks for it."""

import os
import signal

import pytest

# Most of what a short life of a JVM costs is its better compiler, and threads that collect garbage.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


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

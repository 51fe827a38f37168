"""One Spark session for all tests of this folder, because it takes seconds to start.  The first use starts it."""

import os
import signal

import pytest
from tests.spark.archive import options

os.environ.setdefault("SPARK_SUBMIT_OPTS", options())


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

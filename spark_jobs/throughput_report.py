"""The messages through each queue, hour by hour, and how long they waited and were worked on.

    python spark_jobs/throughput_report.py /var/lib/brokerd --queues 'orders*'
    spark-submit spark_jobs/throughput_report.py s3://bucket/archive --out throughput --format parquet

Settled hours and latencies need the order journal of a queue (x-order-journal); what was published does not. An
example to copy: plain Spark over the source "brokerd".
"""

import argparse

from brokerd.audit import AuditError
from brokerd.spark.session import session
from brokerd.spark.source import read

HOUR = "timestamp_micros({} div 1000)"
COLUMNS = ("vhost", "queue", "published", "first_delivered", "settled", "body_octets")


def hours(spark, path, **options):
    """A row for each queue and hour in which something happened."""
    read(spark, path, "lifecycle", columns=COLUMNS, **options).createOrReplaceTempView("lives")
    return spark.sql("""
        WITH happened AS (
            SELECT vhost, queue, explode(array(
                struct(published AS ts, 1 AS published, 0 AS delivered, 0 AS settled, body_octets AS octets),
                struct(first_delivered AS ts, 0 AS published, 1 AS delivered, 0 AS settled, 0L AS octets),
                struct(settled AS ts, 0 AS published, 0 AS delivered, 1 AS settled, 0L AS octets))) AS what
            FROM lives)
        SELECT vhost, queue, date_trunc('hour', timestamp_micros(what.ts div 1000)) AS hour,
               sum(what.published) AS published, sum(what.delivered) AS delivered, sum(what.settled) AS settled,
               sum(what.octets) AS body_octets
        FROM happened WHERE what.ts IS NOT NULL
        GROUP BY ALL ORDER BY vhost, queue, hour""")


def latencies(spark):
    """A row for each queue: how long messages waited, and how long they were worked on, in ms."""
    return spark.sql("""
        SELECT vhost, queue, count(first_delivered) AS delivered,
               percentile_approx((first_delivered - published) / 1e6, array(0.5, 0.9, 0.99)) AS waited_p50_p90_p99_ms,
               percentile_approx((settled - first_delivered) / 1e6, array(0.5, 0.9, 0.99)) AS worked_p50_p90_p99_ms
        FROM lives GROUP BY vhost, queue ORDER BY vhost, queue""")


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a data directory, a dump or an archive")
    parser.add_argument("--queues", help="only queues of these names, or vhost/names: a pattern")
    parser.add_argument("--out", help="folder for the table of hours; it must not exist")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    given = parser.parse_args()
    options = {"queues": given.queues} if given.queues else {}
    spark = session("throughput report")
    try:
        table = hours(spark, given.path, **options).cache()
    except AuditError as error:
        parser.error(str(error))
    table.show(200, truncate=False)
    latencies(spark).show(200, truncate=False)
    if given.out:
        table.coalesce(1).write.option("header", True).format(given.format).save(given.out)
        print(f"written to {given.out}")
    spark.stop()


if __name__ == "__main__":
    main()

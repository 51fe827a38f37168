"""Lists the messages that came back, why they did, and the consumers that returned them.

    python spark_jobs/redelivery_report.py /var/lib/brokerd --queues 'orders*'
    spark-submit spark_jobs/redelivery_report.py s3://bucket/archive --out redeliveries --format parquet

Needs the order journal of the queues (x-order-journal). An example to copy: plain Spark over the source "brokerd",
and over its views.
"""

import argparse

from brokerd.audit import AuditError
from brokerd.spark.session import session
from brokerd.spark.views import views

CAUSES = """
    SELECT vhost, queue, reason AS cause, count(*) AS returns, count(DISTINCT seq) AS messages, max(time) AS latest
    FROM events WHERE type = 'returned'
    GROUP BY ALL ORDER BY returns DESC"""

# The event of a return has the number of the consumer that had the message.
CONSUMERS = """
    SELECT e.vhost, e.queue, e.consumer, first(c.tag) AS tag, first(c.peer) AS peer,
           count_if(e.type = 'delivered') AS deliveries, count_if(e.type = 'returned') AS returns,
           round(100 * count_if(e.type = 'returned') / nullif(count_if(e.type = 'delivered'), 0), 1) AS percent
    FROM events e
    LEFT JOIN consumers c ON c.vhost = e.vhost AND c.queue = e.queue AND c.number = e.consumer
    WHERE e.type IN ('delivered', 'returned') AND NOT coalesce(e.by_get, false)
    GROUP BY e.vhost, e.queue, e.consumer HAVING returns > 0 ORDER BY returns DESC"""

MESSAGES = """
    SELECT vhost, queue, priority, seq, deliveries, returns, ended, reason, first_delivered_time, settled_time
    FROM lifecycle WHERE returns > 0
    ORDER BY returns DESC, vhost, queue, seq"""


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a data directory, a dump or an archive")
    parser.add_argument("--queues", help="only queues of these names, or vhost/names: a pattern")
    parser.add_argument("--top", type=int, default=50, help="rows to print of each table (50)")
    parser.add_argument("--out", help="folder for the table of messages; it must not exist")
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    given = parser.parse_args()
    options = {"queues": given.queues} if given.queues else {}
    spark = session("redelivery report")
    try:
        views(spark, given.path, **options)
    except AuditError as error:
        parser.error(str(error))
    for title, query in (("returns by cause", CAUSES), ("by consumer", CONSUMERS), ("messages", MESSAGES)):
        print(title)
        spark.sql(query).show(given.top, truncate=False)
    if given.out:
        spark.sql(MESSAGES).coalesce(1).write.option("header", True).format(given.format).save(given.out)
        print(f"written to {given.out}")
    spark.stop()


if __name__ == "__main__":
    main()

"""SQL over a broker's files: ``views`` names the tables of the source ``brokerd``, and tables about queues.

    views(spark, "/var/lib/brokerd")
    spark.sql("SELECT queue, count(*) FROM messages GROUP BY queue").show()

====================  ==================================================================================
messages, events      one row per message, one per event; ``time`` beside ``ts``
lifecycle             one row per message: its life; ``*_time`` beside times in ns
segments              one row per segment; ``first_time``, ``last_time``
acks                  one row per entry of an acks file
queues                one row per queue: its settings, its kept messages, the time of its dump
settings              the settings in force from when to when: journal, delivery limit, dead letters
consumers             the consumers of a journaled queue: number (as in events), tag, peer, user, prefetch
removals              the messages that retention removed, and why
told                  the counters of the broker in a dump, by where they stand: ``manifest``, ``order``; and its
                      counts of ready and of unacked messages
queue_damage          files missing or in the wrong place; damage within files is a column of segments
violations            the findings of audits, on request
====================  ==================================================================================

All but the last are lazy: only a query reads the files, and each query reads them anew.  For many queries, cache a view
(``spark.catalog.cacheTable``) or write it to Parquet.  Judges nothing by itself: see ``checks``.
"""

from typing import TYPE_CHECKING

from brokerd.spark import checks
from brokerd.spark.small_tables import NAMES, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd.audit.scan import Options


def views(spark: "SparkSession", path: str, *, findings: str | None = None, check: "bool | Options" = False,
          **options: str) -> tuple[str, ...]:
    """Make the views over the data directory, dump or archive at ``path``, and return their names.

    They replace earlier views.  ``violations`` exists with ``findings``, a folder of findings that an audit wrote
    (``OUT/findings``), or with ``check``, which runs all audits now in SQL, or those of the given Options.  ``options``
    are the source's (``queues``, ``crc``).  Raises AuditError.
    """
    tables(spark, path, **options)
    spark.catalog.dropTempView("violations")
    if findings is None and check is False:
        return NAMES
    if findings is not None:
        found = spark.read.schema(checks.VIOLATIONS).parquet(findings)
    else:
        found = checks.violations(spark, checks.DEFAULTS if isinstance(check, bool) else check)
        tables(spark, path, **options)      # New views release the rows that the checks had cached.
    found.createOrReplaceTempView("violations")
    return (*NAMES, "violations")

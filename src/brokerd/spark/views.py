"""SQL over what a broker wrote: ``views`` names the tables of the source ``brokerd``, and what stands beside them.

    views(spark, "/var/lib/brokerd")
    spark.sql("SELECT queue, count(*) FROM messages GROUP BY queue").show()

====================  ==================================================================================
messages, events      one row a message, one an event; ``time`` beside ``ts``
lifecycle             one row a message: what became of it; ``*_time`` beside times in ns
segments              one row a segment; ``first_time``, ``last_time``
queues                one row a queue: its settings, what is kept of it, where it was cut
settings              what was in force from when to when: journal, delivery limit, dead letters
consumers             who read a journaled queue: number (as in events), tag, peer, user, prefetch
removals              which messages retention took away, and why
queue_damage          files missing or in the wrong place; damage within files is a column of segments
violations            what audits found, if it is asked for
====================  ==================================================================================

All but the last are lazy: nothing is read before a query is run, and each query reads the files anew; whoever asks much
caches a view (``spark.catalog.cacheTable``) or writes it to Parquet.  Judges nothing by itself: see ``checks``.
"""

from typing import TYPE_CHECKING

from brokerd.spark import checks
from brokerd.spark.small_tables import NAMES, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd.audit.scan import Options


def views(spark: "SparkSession", path: str, *, findings: str | None = None, check: "bool | Options" = False,
          **options: str) -> tuple[str, ...]:
    """Make the views over the data directory, dump or archive at ``path``, in place of any before; their names.

    ``violations`` is there with ``findings``, a folder of findings that an audit wrote (``OUT/findings``), or with
    ``check``: then all audits are run now, in SQL, or those of the Options given.  ``options`` are those of the source
    (``queues``, ``crc``).  Raises AuditError.
    """
    tables(spark, path, **options)
    spark.catalog.dropTempView("violations")
    if findings is None and check is False:
        return NAMES
    if findings is not None:
        found = spark.read.schema(checks.VIOLATIONS).parquet(findings)
    else:
        found = checks.violations(spark, checks.DEFAULTS if isinstance(check, bool) else check)
        tables(spark, path, **options)      # Rows that were held for the checks are let go.
    found.createOrReplaceTempView("violations")
    return (*NAMES, "violations")

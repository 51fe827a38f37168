"""Makes Spark tables of brokerd's segments, acks and journals, and audits the order of messages over them.

    import brokerd.spark                                # registers the source in the session that runs, if one does
    spark.read.format("brokerd").option("table", "messages").load("/var/lib/brokerd")
    brokerd.spark.read(spark, "/var/lib/brokerd", "events", columns=("queue", "seq", "type"))
    brokerd.spark.sql(spark, "/var/lib/brokerd", "SELECT queue, count(*) FROM messages GROUP BY queue")

``brokerd.spark.session.session()`` makes a session.  One of your own knows the source without any import, if its Python
has brokerd installed: the module ``pyspark_brokerd`` is what PySpark looks for.

Needs the packages of brokerd's extra ``spark``: ``pip install -e '.[spark]'`` in a checkout.  Without a session,
importing this package imports none of its modules, so that a worker imports only those that its task needs.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.spark.query import sql, where
    from brokerd.spark.source import read, register

__all__ = ["read", "register", "sql", "where"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'brokerd.spark' has no attribute {name!r}")
    if name in ("sql", "where"):
        from brokerd.spark import query

        return getattr(query, name)
    from brokerd.spark import source

    return getattr(source, name)


def _register_in_the_session_that_runs() -> None:
    """Raises AuditError as ``register`` does."""
    pyspark = sys.modules.get("pyspark.sql")
    running = pyspark.SparkSession.getActiveSession() if pyspark is not None else None
    if running is not None:
        from brokerd.spark import source

        source.register(running)


_register_in_the_session_that_runs()

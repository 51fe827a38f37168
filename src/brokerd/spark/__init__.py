"""Makes Spark tables of brokerd's segments, acks and journals, and audits the order of messages over them.

    spark = brokerd.spark.session.session()             # or any session of yours: brokerd.spark.register(spark)
    spark.read.format("brokerd").option("table", "messages").load("/var/lib/brokerd")
    brokerd.spark.read(spark, "/var/lib/brokerd", "events", columns=("queue", "seq", "type"))

Needs the packages of ``pip install brokerd[spark]``.  Importing this package imports none of its modules, so that a
worker imports only those that its task needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.spark.source import read, register

__all__ = ["read", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'brokerd.spark' has no attribute {name!r}")
    from brokerd.spark import source

    return getattr(source, name)

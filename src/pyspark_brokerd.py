"""Lets ``spark.read.format("brokerd")`` work in any session whose Python has brokerd installed.

A session of PySpark imports all modules named ``pyspark_*`` when it meets a format that it does not know, and takes the
class ``DefaultSource`` of each.  ``brokerd.spark.source`` describes the format.
"""

try:
    from brokerd.spark.source import BrokerdSource as DefaultSource
except ImportError:     # Without pyarrow there is no such source; an error here would hide all sources of others.
    __all__ = []
else:
    __all__ = ["DefaultSource"]

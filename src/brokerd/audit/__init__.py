"""The part that all outside readers of segments share: Spark jobs, inspection, tracing.  See ``layout``, ``files``.

This package needs numpy, and of brokerd only ``store.format`` and ``store.reading``.  So a worker needs only a zip of
this package, ``brokerd/__init__.py`` and ``brokerd/store/{__init__,format,reading}.py``.  If the compiled plane is
installed, it makes checking faster.
"""


class AuditError(Exception):
    """The files cannot be read at all; the text is one line for the user."""

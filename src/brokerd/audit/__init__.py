"""What readers of segments from outside share: Spark jobs, inspection, tracing.  See ``layout``, ``files``.

Of brokerd, only ``store.format`` and ``store.reading`` are needed, and numpy: a zip of this package,
``brokerd/__init__.py`` and ``brokerd/store/{__init__,format,reading}.py`` is all that a worker must be sent.  The
compiled plane, where there is one, makes checking faster.
"""


class AuditError(Exception):
    """What was asked for cannot be read at all; one line for the user."""

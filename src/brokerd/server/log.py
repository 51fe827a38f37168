"""Logs: one line for each event, with time and severity, to standard error or a file."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.config import Config

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


class OneLine(logging.Formatter):
    """Writes line breaks as ``\\n`` and ``\\r``, so that a name that a peer chose cannot forge a line of the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


def configure(config: "Config", *keep: logging.Handler) -> None:
    """Send log lines to the file or stream that ``config`` names, and to the handlers ``keep``.

    A second call reopens the file, which may have been moved away.  Raises OSError.
    """
    handler: logging.Handler = logging.StreamHandler()
    if config.log_file:
        handler = logging.FileHandler(config.log_file, errors="backslashreplace")
    handler.setFormatter(OneLine(FORMAT, TIME_FORMAT))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        if old not in keep:
            old.close()
    root.addHandler(handler)
    for further in keep:
        further.setFormatter(handler.formatter)
        root.addHandler(further)
    root.setLevel(config.log_level.upper())

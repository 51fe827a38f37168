"""Logs: one line for each event, with time and severity, to standard error or a file; for people, or as JSON."""

import logging
import re
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brokerd.config import Config

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
LINES_KEPT = 1000
LINE_CHARACTERS_MAX = 4096  # of the message; a traceback is not cut
# C0 and C1, line and paragraph separators, and the marks that turn the direction of writing.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Record(logging.LogRecord):
    """A line of the log, with the attributes that this module and the log exchange use.  Logging's own record also
    takes the thread, the process and the file of the caller apart, which no line names."""

    def __init__(
        self, name: str, level: int, pathname: str, lineno: int, msg: object, args: Any, exc_info: Any,
        func: str | None = None, sinfo: str | None = None, **_: object,
    ) -> None:  # fmt: skip
        now = time.time()
        self.name, self.levelno, self.levelname = name, level, logging.getLevelName(level)
        self.msg = msg
        self.args = args[0] if args and len(args) == 1 and isinstance(args[0], Mapping) and args[0] else args
        self.created, self.msecs = now, int(now % 1 * 1000)
        self.pathname, self.lineno, self.funcName = pathname, lineno, func  # type: ignore[assignment]
        self.exc_info, self.exc_text, self.stack_info = exc_info, None, sinfo


class OneLine(logging.Formatter):
    """Writes control characters as escapes and cuts long lines, so that a name that a peer chose can neither forge a
    line of the log, nor change the terminal that shows it, nor fill the disk."""

    def __init__(self) -> None:
        super().__init__(FORMAT, TIME_FORMAT)
        self._last_time = (-1, "")  # a second and its text; one tuple, because threads share this object

    def format(self, record: logging.LogRecord) -> str:
        """The line; a line with a traceback is left to logging."""
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        message = _in_one_line(record.getMessage())
        return f"{self.formatTime(record)}.{record.msecs:03d} {record.levelname:7} {message}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = _in_one_line(record.message)
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - as above
        second, text = self._last_time
        if second != int(record.created):
            text = super().formatTime(record, TIME_FORMAT)
            self._last_time = (int(record.created), text)
        return text


class OneObject(logging.Formatter):
    """Writes each event as a JSON object in one line.  Whatever a peer chose stands in a JSON string, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        import json  # A start that logs text does without.

        second, micros = int(record.created), int(record.created % 1 * 1e6)
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{micros:06d}Z",
            "level": record.levelname.lower(), "logger": record.name, "message": _cut(record.getMessage()),
        }  # fmt: skip
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line)


class Recent(logging.Handler):
    """Keeps the last lines for who asks the running broker."""

    def __init__(self, lines_max: int = LINES_KEPT) -> None:
        super().__init__()
        self._lines: deque[tuple[int, int, str, str]] = deque(maxlen=lines_max)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line.  logging holds this handler's lock."""
        self._number += 1
        text = _in_one_line(record.getMessage())
        self._lines.append((self._number, int(record.created * 1000), record.levelname.lower(), text))

    def after(self, number: int) -> list[tuple[int, int, str, str]]:
        """Number, time (ms since the epoch), severity and text of each kept line with a higher number."""
        self.acquire()
        try:
            return [line for line in self._lines if line[0] > number]
        finally:
            self.release()


def _cut(message: str) -> str:
    if len(message) <= LINE_CHARACTERS_MAX:
        return message
    left_out = len(message) - LINE_CHARACTERS_MAX
    return f"{message[:LINE_CHARACTERS_MAX]}... ({left_out} characters more)"


def _in_one_line(message: str) -> str:
    message = _cut(message)
    if message.isprintable():
        return message
    return CONTROL.sub(lambda found: ascii(found.group())[1:-1], message)


def configure(config: "Config", *keep: logging.Handler) -> None:
    """Send log lines to the file or stream that ``config`` names, and to the handlers ``keep``.

    A second call reopens the file, which may have been moved away.  Raises OSError.
    """
    handler: logging.Handler = logging.StreamHandler()
    if config.log_file:
        handler = logging.FileHandler(config.log_file, errors="backslashreplace")
    handler.setFormatter(OneObject() if config.log_format == "json" else OneLine())
    # The lines name neither their place in the sources nor thread and process, so logging need not look for them.
    logging._srcfile = None
    logging.setLogRecordFactory(Record)
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

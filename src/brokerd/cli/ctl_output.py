"""The output of brokerctl: answers go to standard output; remarks, errors and progress go to standard error."""

import sys


def show(text: str) -> None:
    """Print an answer, and flush it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def remark(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"brokerctl: {' '.join(text.split())}\n")


class Progress:
    """One line on standard error that each report overwrites; if standard error is not a terminal, no line at all.

    Used with ``with``; the line disappears at the end.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def at(self, text: str) -> None:
        """Report how far the work is."""
        self._write(text)

    def _write(self, text: str) -> None:
        if self._terminal and (text or self._shown):
            sys.stderr.write(f"\r{text.ljust(self._shown)}" if text else f"\r{' ' * self._shown}\r")
            sys.stderr.flush()
            self._shown = len(text)

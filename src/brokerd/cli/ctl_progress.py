"""How far something is: one line on standard error, written over, where that is a terminal; else nothing."""

import sys


class Progress:
    """Within ``with``; the line is taken away at its end."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def at(self, text: str) -> None:
        """This far."""
        self._write(text)

    def _write(self, text: str) -> None:
        if self._terminal and (text or self._shown):
            sys.stderr.write(f"\r{text.ljust(self._shown)}" if text else f"\r{' ' * self._shown}\r")
            sys.stderr.flush()
            self._shown = len(text)

"""Destinations to bind to: the least a queue must have."""

from typing import Any


class Queue:
    """A named destination with a list of its bindings."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bindings: list[Any] | set[Any] = []

    def __repr__(self) -> str:
        return self.name


def queues(count: int) -> list[Queue]:
    """q0, q1, ..."""
    return [Queue(f"q{number}") for number in range(count)]

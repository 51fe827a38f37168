"""``/api`` as RabbitMQ's management plugin has it, so that its tools work unchanged: all its routes."""

from brokerd.management import (
    rabbit_broker,
    rabbit_change,
    rabbit_definitions,
    rabbit_links,
    rabbit_messages,
    rabbit_read,
    rabbit_traces,
)
from brokerd.management.app import Route


def routes() -> list[tuple[str, str, Route]]:
    """The routes below ``/api``."""
    modules = (rabbit_broker, rabbit_read, rabbit_change, rabbit_messages, rabbit_definitions,
               rabbit_links, rabbit_traces)  # fmt: skip
    return [row for module in modules for row in module.routes()]

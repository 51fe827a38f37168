"""``/api`` as RabbitMQ's management plugin has it, so that its tools work unchanged: all its routes."""

from brokerd.management import rabbit_broker, rabbit_change, rabbit_messages, rabbit_read
from brokerd.management.app import Route


def routes() -> list[tuple[str, str, Route]]:
    """The routes below ``/api``."""
    return [*rabbit_broker.routes(), *rabbit_read.routes(), *rabbit_change.routes(), *rabbit_messages.routes()]

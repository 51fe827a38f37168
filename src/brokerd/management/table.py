"""All routes of the process."""

from brokerd.management import metrics, pages, rabbit, v2
from brokerd.management.app import Route


def all_routes() -> list[tuple[str, str, Route]]:
    """Method, pattern, and what stands there."""
    return [*v2.routes(), *metrics.routes(), *rabbit.routes(), *pages.routes()]

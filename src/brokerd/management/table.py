"""All routes of the process."""

from brokerd.management import log_events, metrics, oauth, pages, rabbit, run_files, stream_events, v2
from brokerd.management.app import Route


def all_routes() -> list[tuple[str, str, Route]]:
    """Method, pattern, and answer."""
    return [*v2.routes(), *stream_events.routes(), *log_events.routes(), *run_files.routes(), *metrics.routes(),
            *rabbit.routes(), *oauth.routes(), *pages.routes()]  # fmt: skip

"""Reports when a link begins, stops or changes its state: in the log, and as RabbitMQ's events.

    shovel.worker.status, federation.link.status        a link has another state, or another reason for it
    shovel.worker.removed, federation.link.removed      a link has ended

Figures that change with each message cause no report.  Addresses have neither user nor password.
"""

from logging import getLogger
from typing import TYPE_CHECKING, Any

from brokerd.links.state import BLOCKED, RUNNING, SHOVEL, TERMINATED, LinkState
from brokerd.links.uris import without_credentials

if TYPE_CHECKING:
    from brokerd.node import Node

log = getLogger("brokerd")


def tell_change(node: "Node", before: LinkState | None, now: LinkState) -> None:
    """A link has told its state; ``before``: what it told last."""
    if before is not None and (before.state, before.reason) == (now.state, now.reason):
        return
    if before is None or before.state != now.state:
        _log(now)
    if node.events.wanted:
        node.tell(f"{_noun(now)}.status", _fields(now))


def tell_end(node: "Node", last: LinkState) -> None:
    """A link is no more."""
    log.info("%s: ended after %d messages", title(last), last.messages)
    node.tell(f"{_noun(last)}.removed", _names(last))


def title(link: LinkState) -> str:
    """The link for the log."""
    if link.kind == SHOVEL:
        return f"shovel '{link.name}' in vhost '{link.vhost}'"
    return f"federation of {link.kind} '{link.name}' in vhost '{link.vhost}' with upstream '{link.upstream}'"


def _log(link: LinkState) -> None:
    if link.state == RUNNING:
        to = f" to {without_credentials(link.dest_uri)}" if link.dest_uri and link.kind == SHOVEL else ""
        log.info("%s: running, from %s%s", title(link), without_credentials(link.source_uri), to)
    elif link.state in (BLOCKED, TERMINATED):
        log.warning("%s: %s%s", title(link), link.state, f": {link.reason}" if link.reason else "")


def _noun(link: LinkState) -> str:
    return "shovel.worker" if link.kind == SHOVEL else "federation.link"


def _fields(link: LinkState) -> dict[str, Any]:
    """Those of an event; what is not known is left out, as RabbitMQ does."""
    uris = {"src_uri": link.source_uri, "dest_uri": link.dest_uri} if link.kind == SHOVEL else {"uri": link.source_uri}
    known = {name: without_credentials(uri) for name, uri in uris.items() if uri}
    return {**_names(link), "status": link.state, **known, **({"error": link.reason} if link.reason else {})}


def _names(link: LinkState) -> dict[str, Any]:
    if link.kind == SHOVEL:
        return {"vhost": link.vhost, "name": link.name}
    return {"vhost": link.vhost, "type": link.kind, link.kind: link.name, "upstream": link.upstream}

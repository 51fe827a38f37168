"""What HUP does: the broker reads its options and its JSON files again, checks them all, and then puts them in force.

A thread reads and checks them.  The loop puts them in force in pieces of a millisecond, and clients have their turn
between.

    options         what can change while the broker runs; the log names the others
    users.json, permissions.json, topic_permissions.json, policies.json and operator-policies.json of each vhost
    vhosts.json     limits, tracing and default types of queues; added vhosts are made at the next start, and removed
                    ones are open until then

Either everything takes effect or nothing: if one file cannot be used, nothing changes, and the log says "not reloaded"
with the reason.  A file has the broker's own changes, so reading it loses none of them.  The broker does not write into
a file that was edited since it was read (``store/json_file``).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.config import changed_options
from brokerd.errors import ConfigError, StoreError, in_words
from brokerd.pieces import add_work
from brokerd.server import unknown
from brokerd.server.log import configure
from brokerd.server.values import limits_of, settings_of
from brokerd.store.json_file import Changes, named
from brokerd.vhost import events

if TYPE_CHECKING:
    from ssl import SSLContext

    from brokerd.auth.permissions import Entries
    from brokerd.config import Config
    from brokerd.node import Node
    from brokerd.policies.parameters import Key
    from brokerd.server.launch import Server
    from brokerd.server.tls_certificates import Certificate
    from brokerd.vhost.listing import Row
    from brokerd.vhost.vhost import VHost

log = getLogger("brokerd")

TELL_SECONDS = 5  # while it is put in force: thousands of policies and queues take long
Step = Callable[[], Iterator[None]]  # puts a file that was read and checked in force; at each yield a piece may end


class Found(NamedTuple):
    """The files and options that were read, or why some of them cannot be used."""

    steps: list[Step]
    options: "Config"
    context: "SSLContext | None"
    certificates: "list[Certificate]"
    faults: list[str]


def begin(server: "Server", done: Callable[[], object]) -> None:
    """Read everything again, and put it in force if all of it can be used; then call ``done()``.

    The log has the result.
    """
    log.info("SIGHUP: reading options and files again")
    node = server.node

    def over() -> None:
        node.changing.give()
        done()

    def work() -> None:
        found = read(server, vhosts)
        with suppress(RuntimeError):  # The loop may be closed by now.
            server.loop.call_soon_threadsafe(lambda: add_work(node.core, put_in_force(server, found), over))

    def go() -> None:
        vhosts.extend(node.vhosts.values())
        threading.Thread(target=work, name="reload", daemon=True).start()

    vhosts: list[VHost] = []
    node.changing.take(go)  # An operation may be about to write a file.


def read(server: "Server", vhosts: "list[VHost]") -> Found:
    """Read and check all of it.  This changes nothing."""
    steps, faults = _read_files(server.node, vhosts)
    options, context, certificates = server.config, None, list["Certificate"]()
    try:
        options = server.reload()
        if server.gate is not None and options.tls_cert:
            from brokerd.server import tls_context

            context, certificates = tls_context.context(options), tls_context.certificates(options)
    except (ConfigError, OSError) as error:
        faults.insert(0, in_words(error))
    return Found(steps, options, context, certificates, faults)


def put_in_force(server: "Server", found: Found) -> Iterator[None]:
    """Let what was read hold from now on, unless there are faults."""
    faults = list(found.faults)
    taken, waiting = _split(server, found.options, found.context)
    if faults:
        taken = {}
    config = replace(server.config, **taken)
    try:
        configure(config, *server.handlers)  # First: the log file may have been moved away.
    except OSError as error:
        faults.append(in_words(error))
    if faults:
        for fault in faults:
            log.error("not reloaded, nothing changed: %s", fault)
        return
    yield from take_steps(found.steps)
    for line in waiting:
        log.warning("reload: %s", line)
    for name, value in taken.items():
        log.info("reload: %s is now %s", name, value)
    if taken:
        server.config = config
        server.node.settings, server.node.limits = settings_of(config), limits_of(config)
    if server.gate is not None and found.context is not None:
        server.gate.config, server.gate.context = server.config, found.context
        server.note_certificates(found.certificates)
        if server.management is not None:
            server.management.renew(server.config)
    unknown.warn_of_permissions(server.node)
    server.node.core.turn()
    log.info("reloaded")


def take_steps(steps: list[Step]) -> Iterator[None]:
    """Put files in force.  The log says from time to time that it goes on."""
    began = told = monotonic()
    for step in steps:
        for _ in step():
            yield
            if monotonic() >= told + TELL_SECONDS:
                told = monotonic()
                log.info("reload: still under way after %.0f s", told - began)


def _split(server: "Server", options: "Config", context: "SSLContext | None") -> tuple[dict[str, Any], list[str]]:
    """The changed options that can take effect now, and lines about the others."""
    taken, waiting = {}, []
    for row in changed_options(server.config, options):
        if row.option.section == "tls" and context is None:
            waiting.append(f"{row.name} takes effect at the next start: TLS is not switched on or off before")
        elif row.option.reloadable:
            taken[row.name] = getattr(options, row.name)
        else:
            waiting.append(f"{row.name} takes effect at the next start")
    return taken, waiting


# --- files


def _read_files(node: "Node", vhosts: "list[VHost]") -> tuple[list[Step], list[str]]:
    """Read and check all files of the data directory: what puts them in force, and faults in words."""
    steps: list[Step] = []
    faults: list[str] = []
    for take in _readers(node, vhosts):
        try:
            steps.append(take())
        except (StoreError, OSError) as error:
            faults.append(in_words(error))
    return steps, faults


def _readers(node: "Node", vhosts: "list[VHost]") -> Iterator[Callable[[], Step]]:
    yield lambda: partial(_take_users, node, node.users.read_again())
    yield lambda: partial(_take_entries, node, node.permissions, node.permissions.read_again(), "permission")
    topics = node.permissions.topics
    yield lambda: partial(_take_entries, node, topics, topics.read_again(), "topic.permission")
    yield lambda: partial(_take_vhosts, node, node.listing.read_again())
    yield lambda: partial(_take_parameters, node, node.parameters.read_again())
    for vhost in vhosts:
        if vhost.policies is not None:
            yield partial(_read_policies, node, vhost)


def _take_users(node: "Node", found: dict[str, Any]) -> Iterator[None]:
    before = {user.name: user for user in node.users}
    _log_changes("users.json", node.users.take_over(found))
    for name, old in before.items():
        yield
        new = found.get(name)
        if new is None:
            continue
        if (new.password_hash, new.hashing_algorithm) != (old.password_hash, old.hashing_algorithm):
            node.tell(f"user.password.{'changed' if new.password_hash else 'cleared'}", {"name": name})
        if new.tags != old.tags:
            node.tell("user.tags.set", {"name": name, "tags": list(new.tags)})
    yield from node.shut_users({name: None for name in before if name not in found})
    for name in found:
        if name not in before:
            node.tell("user.created", {"name": name})
            yield


def _take_entries(
    node: "Node", entries: "Entries[Any]", found: dict[tuple[str, ...], Any], event: str
) -> Iterator[None]:
    before = {entry.key: entry.definition() for entry in entries}
    _log_changes(entries.path.rpartition("/")[2], entries.take_over(found))
    for key, entry in found.items():
        if before.pop(key, None) != entry.definition():
            node.tell(f"{event}.created", entry.definition())
        yield
    for definition in before.values():
        node.tell(f"{event}.deleted", definition)
        yield


def _take_vhosts(node: "Node", found: "dict[str, Row]") -> Iterator[None]:
    before = node.listing.rows
    node.listing.take_over(found)
    for name, row in node.listing.rows.items():
        vhost = node.vhosts[name]
        vhost.take_settings(row)
        yield
        if row.limits != before[name].limits:
            log.info("reload: the limits of vhost '%s' are now %s", name, row.limits or "none")
        if row.default_queue_type != before[name].default_queue_type:
            kind = row.default_queue_type or "none"
            log.info("reload: the default type of queues of vhost '%s' is now %s", name, kind)
        if row.tracing is not before[name].tracing:
            vhost.firehose.switch(row.tracing)
            log.info("reload: the firehose (tracing) of vhost '%s' is %s", name, "on" if row.tracing else "off")
    new = [f"'{name}'" for name in found if name not in node.vhosts]
    gone = [f"'{name}'" for name in node.vhosts if name not in found]
    if new:
        log.warning("reload: vhosts.json: vhosts are made at the next start: %s", named(new))
    if gone:
        log.warning("reload: vhosts.json: vhosts stay open until the next start, and their folders stay after it: %s",
                    named(gone))


def _take_parameters(node: "Node", found: "dict[Key, Any]") -> Iterator[None]:
    _log_changes("parameters.json", node.parameters.take_over(found))
    yield


def _read_policies(node: "Node", vhost: "VHost") -> Step:
    assert vhost.policies is not None
    return partial(
        _take_policies, node, vhost, vhost.policies.read_again(), vhost.policies.operators.read_again()
    )


def _take_policies(
    node: "Node", vhost: "VHost", found: dict[str, Any], operators: dict[str, Any]
) -> Iterator[None]:
    policies = vhost.policies
    assert policies is not None
    before = [policy.entry() for policy in policies]
    changed = policies.take_over(found)
    of_operators = policies.operators.take_over(operators)
    if changed or of_operators:
        yield from node.upkeep.put_policies_in_force(vhost)
        node.links.changed()
    _log_changes(f"policies of vhost '{vhost.name}'", changed)
    _log_changes(f"operator policies of vhost '{vhost.name}'", of_operators)
    if changed and node.events.wanted:
        events.publish_policy_changes(node.events, vhost.name, before, [policy.entry() for policy in policies])


def _log_changes(what: str, changed: Changes) -> None:
    if changed:
        log.info("reload: %s: %s", what, changed)

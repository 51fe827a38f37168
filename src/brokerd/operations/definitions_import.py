"""Imports definitions: all of them or none, also where the broker is killed in between.

Everything is read and checked first.  Then the content goes into the file ``import.json``, which is on disk before the
first change.  All changes can be made again, so a start that finds the file makes them all, and removes it.  The
file's users, permissions, policies and parameters replace those of the broker; exchanges and queues that are there stay
as they are.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from brokerd.operations import OperationError
from brokerd.operations.changing import Lasting, in_pieces
from brokerd.operations.definitions_file import Read, parse, read
from brokerd.operations.jobs import IN_THREAD, ON_LOOP, Pace, Steps, Wait
from brokerd.store.format import IMPORT_FILE

if TYPE_CHECKING:
    from brokerd.node import Node
    from brokerd.operations.rows import Who
    from brokerd.store.json_file import Change
    from brokerd.vhost.vhost import VHost

OCTETS_MAX = 256 << 20
CHANGES_SHOWN = 10_000


def run(node: "Node", who: "Who", *, file: str, text: str, vhost: str, dry_run: bool) -> Lasting:
    """The job that imports the definitions of a file or a text."""
    if bool(file) == bool(text):
        raise OperationError("either file or text must be given", 400)
    return Lasting(node, _run(node, file, text, vhost, dry_run))


def _run(node: "Node", file: str, text: str, vhost: str, dry_run: bool) -> Steps:
    yield Wait(node.changing.take)
    try:
        yield IN_THREAD
        error: Exception | None = None
        try:
            text = text or _text_of(node, file)
            content = parse(text)
            found = read(node, content, text, vhost)
        except Exception as caught:  # It must not leave this generator in the thread.
            error = caught
        yield ON_LOOP
        if error is not None:
            raise error
        changes, pace = list[dict[str, Any]](), Pace()
        for each in differences(node, found):
            if each is not None:
                changes.append(each)
            if pace.is_over():
                yield ON_LOOP
        answer = {"changes": changes[:CHANGES_SHOWN], "count": len(changes), "dry_run": dry_run,
                  "ignored": found.ignored}  # fmt: skip
        if dry_run or not any(each["action"] != "keep" for each in changes):
            return answer
        path = os.path.join(node.data.path, IMPORT_FILE)
        yield IN_THREAD
        try:
            _write(node, path, text, vhost)
        except OSError as caught:
            error = caught
        yield ON_LOOP
        if error is not None:
            raise error
        yield from _apply_live(node, found)
        os.unlink(path)
        return answer
    finally:
        node.changing.give()


def _apply_live(node: "Node", found: Read) -> Steps:
    """Make the changes in a running broker, and wait until they are on disk."""
    for name in missing_vhosts(node, found):
        node.make_vhost(name)
    for change in file_changes(node, found):
        error: Exception | None = None
        yield IN_THREAD
        try:
            change.write()
        except OSError as caught:
            error = caught
        yield ON_LOOP
        if error is not None:
            raise error
        change.apply()
    yield from in_pieces(declare(node, found))
    for vhost in list(node.vhosts.values()):
        vhost.take_settings(node.listing.rows[vhost.name])
        if found.policies or found.operator_policies:
            yield from in_pieces(node.upkeep.put_policies_in_force(vhost))
            node.links.changed()
        appended = vhost.appended
        if appended != vhost.on_disk:
            yield Wait(partial(_wait, node, vhost))
            vhost.entries_on_disk(appended)
    node.core.turn()
    for event, fields in events(found):
        node.tell(event, fields)


def _wait(node: "Node", vhost: "VHost", go_on: Callable[[], object]) -> None:
    node.commit.wait(go_on, vhost.log)


def events(found: Read) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of an import."""
    for user in found.users:
        yield "user.created", {"name": user.name}
    for permission in found.permissions:
        yield "permission.created", permission.definition()
    for vhost, policy in found.policies:
        yield "policy.set", {"vhost": vhost, **policy.entry()}


def _text_of(node: "Node", path: str) -> str:
    """The text of a file that a request names.  Raises OperationError (400)."""
    try:
        return read_text(node, path)
    except (OSError, ValueError) as error:
        raise OperationError(f"{path}: {getattr(error, 'strerror', None) or error}", 400) from None


def read_text(node: "Node", path: str) -> str:
    """The text of a file.  Raises OperationError (400), OSError."""
    octets = node.disk.read(path, OCTETS_MAX)
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise OperationError(f"{path}: line {line}: not UTF-8", 400) from None


def _write(node: "Node", path: str, text: str, vhost: str) -> None:
    from json import dumps

    node.disk.replace(path, dumps({"vhost": vhost, "text": text}).encode())


def finish(node: "Node") -> bool:
    """At a start: make all changes of an import that was under way.  Returns whether there was one."""
    path = os.path.join(node.data.path, IMPORT_FILE)
    if not os.path.exists(path):
        return False
    saved = parse(read_text(node, path))
    apply_at_start(node, read(node, parse(saved["text"]), saved["text"], saved["vhost"]))
    os.unlink(path)
    return True


def load(node: "Node", path: str) -> int:
    """At a start: import a file.  Returns how many changes that made.  Raises OperationError, OSError."""
    text = read_text(node, path)
    found = read(node, parse(text), text)
    changes = [each for each in differences(node, found) if each is not None and each["action"] != "keep"]
    if changes:
        _write(node, os.path.join(node.data.path, IMPORT_FILE), text, "")
        apply_at_start(node, found)
        os.unlink(os.path.join(node.data.path, IMPORT_FILE))
    return len(changes)


def apply_at_start(node: "Node", found: Read) -> None:
    """Make the changes before there are clients."""
    for name in missing_vhosts(node, found):
        node.make_vhost(name)
    for change in file_changes(node, found):
        change.do()
    for _ in declare(node, found):
        pass
    for vhost in node.vhosts.values():
        vhost.take_settings(node.listing.rows[vhost.name])
        node.upkeep.apply_policies(vhost)
        if vhost.appended != vhost.on_disk:
            node.disk.fdatasync(vhost.log.fileno(), vhost.log.path)
            vhost.entries_on_disk(vhost.appended)


# --- the changes


def missing_vhosts(node: "Node", found: Read) -> list[str]:
    """The vhosts that must be made."""
    return [name for name in found.vhosts if name not in node.vhosts]


def file_changes(node: "Node", found: Read) -> "Iterable[Change]":
    """The changes of JSON files, to be written in this order."""
    rows = {name: node.listing.rows.get(name, _new_row()) for name in found.vhosts}
    for name, (description, tags) in found.about.items():
        rows[name] = rows[name]._replace(description=description, tags=tags)
    for name, kind in found.queue_types.items():
        rows[name] = rows[name]._replace(default_queue_type=kind)
    for name, limits in found.limits.items():
        rows[name] = (rows.get(name) or node.listing.rows[name])._replace(limits=limits)
    if rows:
        yield node.listing.changed(rows)
    if found.users:
        yield node.users.changed(found.users)
    if found.permissions:
        yield node.permissions.changed(found.permissions)
    if found.topic_permissions:
        yield node.permissions.topics.changed(found.topic_permissions)
    if found.parameters:
        yield node.parameters.changed(found.parameters)
    for operator, listed in ((False, found.policies), (True, found.operator_policies)):
        for name in dict.fromkeys([vhost for vhost, _ in listed]):
            policies = node.vhosts[name].policies
            assert policies is not None
            file = policies.operators if operator else policies
            yield file.changed([policy for vhost, policy in listed if vhost == name])


def _new_row() -> Any:
    from brokerd.vhost.listing import NEW

    return NEW


def declare(node: "Node", found: Read) -> Iterator[None]:
    """Declare exchanges, queues and bindings that are not there."""
    for thing in found.exchanges:
        vhost = node.vhosts[thing.vhost]
        if thing.name not in vhost.exchanges:
            vhost.add_exchange(
                thing.name, thing.type, durable=thing.durable, auto_delete=thing.auto_delete,
                internal=thing.internal, arguments=thing.arguments,
            )  # fmt: skip
        yield
    for thing in found.queues:
        vhost = node.vhosts[thing.vhost]
        if thing.name not in vhost.queues:
            vhost.add_queue(
                thing.name, durable=thing.durable, auto_delete=thing.auto_delete, arguments=thing.arguments
            )
        yield
    for each in found.bindings:
        vhost = node.vhosts[each.vhost]
        things: Any = vhost.queues if each.destination_type == "queue" else vhost.exchanges
        source, destination = vhost.exchanges.get(each.source), things.get(each.destination)
        if source is not None and destination is not None:
            vhost.bind(source, destination, each.routing_key, each.arguments)
        yield


def differences(node: "Node", found: Read) -> Iterator[dict[str, Any] | None]:
    """The changes of an import, and the things that it keeps although the file differs.

    None for each queue, exchange or binding that was looked at: there may be many, and the caller lets others have
    their turn.
    """
    for name in missing_vhosts(node, found):
        yield _row("add", "vhost", "", name)
    for name, about in found.about.items():
        row = node.listing.rows.get(name)
        if row is not None and (row.description, row.tags) != about:
            yield _row("replace", "vhost", "", name)
    for vhost, limits in found.limits.items():
        row = node.listing.rows.get(vhost)
        if row is None or row.limits != limits:
            yield _row("replace", "limits", vhost, vhost)
    for user in found.users:
        old = node.users.get(user.name).definition() if user.name in node.users else None
        yield from _compared(old, user.definition(), "user", "", user.name)
    for entry in found.permissions:
        old_entry = node.permissions.find(*entry.key)
        yield from _compared(old_entry and old_entry.definition(), entry.definition(), "permission", entry.vhost,
                             entry.user)  # fmt: skip
    for topic in found.topic_permissions:
        old_topic = node.permissions.topics.find(*topic.key)
        yield from _compared(old_topic and old_topic.definition(), topic.definition(), "topic_permission",
                             topic.vhost, f"{topic.user} {topic.exchange}")  # fmt: skip
    for key, value in found.parameters.items():
        old_value = {"value": node.parameters.get(key)} if key in node.parameters else None
        kind = "parameter" if key.component else "global_parameter"
        yield from _compared(old_value, {"value": value}, kind, key.vhost, f"{key.component} {key.name}".strip())
    for kind, listed in (("policy", found.policies), ("operator_policy", found.operator_policies)):
        for vhost, policy in listed:
            there = node.vhosts.get(vhost)
            file = there.policies if there is not None else None
            by_name = {each.name: each.entry() for each in (file.operators if kind != "policy" else file)} if (
                file is not None) else {}  # fmt: skip
            yield from _compared(by_name.get(policy.name), policy.entry(), kind, vhost, policy.name)
    yield from _declared(node, found)


def _declared(node: "Node", found: Read) -> Iterator[dict[str, Any] | None]:
    for kind, things in (("exchange", found.exchanges), ("queue", found.queues)):
        for thing in things:
            yield None
            there = node.vhosts.get(thing.vhost)
            old = None if there is None else getattr(there, f"{kind}s").get(thing.name)
            if old is None:
                yield _row("add", kind, thing.vhost, thing.name)
            elif (old.durable, old.auto_delete, old.arguments) != (thing.durable, thing.auto_delete, thing.arguments) \
                    or (kind == "exchange" and (old.type, old.internal) != (thing.type, thing.internal)):
                yield _row("keep", kind, thing.vhost, thing.name)
    bound: dict[tuple[str, str], set[tuple[str, str, str, str]]] = {}
    for each in found.bindings:
        yield None
        there = node.vhosts.get(each.vhost)
        source = None if there is None else there.exchanges.get(each.source)
        key = (each.vhost, each.source)
        if key not in bound:
            bound[key] = set()
            for binding in [] if source is None else list(source.bindings()):
                yield None
                kind = "exchange" if hasattr(binding.destination, "bindings_to") else "queue"
                bound[key].add((binding.destination.name, kind, binding.routing_key,
                                repr(sorted(binding.arguments.items()))))  # fmt: skip
        what = each.destination, each.destination_type, each.routing_key, repr(sorted(each.arguments.items()))
        if what not in bound[key]:
            yield _row("add", "binding", each.vhost, f"{each.source} -> {each.destination} '{each.routing_key}'")


def _compared(old: Any, new: Any, kind: str, vhost: str, name: str) -> Iterator[dict[str, Any]]:
    if old is None:
        yield _row("add", kind, vhost, name)
    elif old != new:
        yield _row("replace", kind, vhost, name)


def _row(action: str, kind: str, vhost: str, name: str) -> dict[str, Any]:
    return {"action": action, "kind": kind, "vhost": vhost, "name": name}

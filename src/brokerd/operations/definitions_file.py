"""Reads definitions as RabbitMQ and LavinMQ export them, and checks all of them before anything changes.

    content (JSON) -> Read: users, vhosts, permissions, parameters, policies, exchanges, queues, bindings as this broker
    has them

A fault names line, entry and field.  Knows nothing of what the broker has already, except the vhosts that an entry may
name, and the exchanges and queues that a binding may join.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd import json_text
from brokerd.arguments import QUEUE_TYPES
from brokerd.auth.passwords import MD5, SHA256, hash_new, is_hash
from brokerd.auth.permissions import Permission, TopicPermission
from brokerd.auth.users import User, checked_limits
from brokerd.errors import AMQPError, did_you_mean
from brokerd.exchanges import exchange_type
from brokerd.exchanges.arguments import check_arguments as check_exchange_arguments
from brokerd.operations import OperationError
from brokerd.operations.parameters import ValueFault, check_value
from brokerd.policies.parameters import Key
from brokerd.policies.policies import APPLY_TO, Policy
from brokerd.policies.words import explain
from brokerd.queues.queue import check_arguments as check_queue_arguments
from brokerd.vhost.listing import VHOST_LIMITS
from brokerd.vhost.names import RESERVED_PREFIX

if TYPE_CHECKING:
    from json import JSONDecoder

    from brokerd.node import Node

SECTIONS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies",
            "queues", "exchanges", "bindings")  # fmt: skip
OPERATOR_POLICY, VHOST_LIMITS_COMPONENT = "operator_policy", "vhost-limits"  # RabbitMQ has these as parameters


class Thing(NamedTuple):
    """An exchange or a queue."""

    vhost: str
    name: str
    type: str  # of an exchange
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]


class Bound(NamedTuple):
    """A binding."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]


class Read:
    """The contents of the file."""

    def __init__(self) -> None:
        self.users: list[User] = []
        self.vhosts: list[str] = []
        self.about: dict[str, tuple[str, tuple[str, ...]]] = {}  # description and tags of vhosts
        self.queue_types: dict[str, str] = {}  # of vhosts that have a default
        self.limits: dict[str, dict[str, int]] = {}
        self.permissions: list[Permission] = []
        self.topic_permissions: list[TopicPermission] = []
        self.parameters: dict[Key, Any] = {}
        self.policies: list[tuple[str, Policy]] = []
        self.operator_policies: list[tuple[str, Policy]] = []
        self.queues: list[Thing] = []
        self.exchanges: list[Thing] = []
        self.bindings: list[Bound] = []
        self.ignored: list[str] = []  # sections that are not known


def parse(text: str) -> Any:
    """The content.  Raises OperationError (400), which names line and column."""
    import json

    try:
        return json_text.decode(text)
    except json.JSONDecodeError as error:
        raise OperationError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}", 400) from None
    except (RecursionError, ValueError) as error:
        raise OperationError(f"line 1, column 1: not usable JSON: {error}", 400) from None


def read(node: "Node", content: Any, text: str = "", vhost: str = "") -> Read:
    """Check everything.  ``text`` is where content comes from, to find lines; ``vhost``: what entries without one mean.

    Raises OperationError (400).
    """
    return _Reader(node, text, vhost).read(content)


class _Reader:
    def __init__(self, node: "Node", text: str, vhost: str) -> None:
        self._node, self._text, self._vhost = node, text, vhost
        self._found = Read()
        self._section, self._index = "", 0
        self._names: set[tuple[str, str, bool]] = set()  # exchanges and queues of the file

    def read(self, content: Any) -> Read:
        if not isinstance(content, dict):
            raise OperationError("line 1: definitions must be an object with lists such as queues and users", 400)
        found = self._found
        found.ignored = [
            name for name, value in content.items() if name not in SECTIONS and isinstance(value, list | dict)
        ]
        steps: tuple[tuple[str, Callable[[dict[str, Any]], None]], ...] = (
            ("vhosts", self._vhost_entry), ("users", self._user), ("permissions", self._permission),
            ("topic_permissions", self._topic_permission), ("parameters", self._parameter),
            ("global_parameters", self._global_parameter), ("policies", self._policy),
            ("exchanges", self._exchange), ("queues", self._queue), ("bindings", self._binding),
        )  # fmt: skip
        for section, step in steps:
            entries = content.get(section, [])
            self._section, self._index = section, -1
            if not isinstance(entries, list):
                self._fail("", "must be a list")
            for index, entry in enumerate(entries):
                self._index = index
                if not isinstance(entry, dict):
                    self._fail("", "must be an object")
                try:
                    step(entry)
                except (AMQPError, ValueFault) as error:
                    self._fail("", str(error))
        return found

    def _fail(self, field: str, reason: str) -> None:
        where = self._section if self._index < 0 else f"{self._section}[{self._index}]"
        line = line_of(self._text, self._section, self._index) if self._text else 0
        text = f"{where}{f'.{field}' if field else ''}: {reason}"
        raise OperationError(f"line {line}: {text}" if line else text, 400)

    # --- fields

    def _get(self, entry: dict[str, Any], field: str, kind: Any = str, default: Any = None) -> Any:
        if field not in entry or (entry[field] is None and default is not None):
            if default is None:
                self._fail(field, f"is missing{did_you_mean(field, entry)}")
            return default
        value = entry[field]
        from json import dumps

        from brokerd.links.uris import masked_term

        words = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}
        if not isinstance(value, kind):
            if kind is dict and value == []:
                return {}  # as some programs write an empty table
            self._fail(field, f"must be {words[kind]}, not {dumps(masked_term(value, field)):.60}")
        return value

    def _vhost_of(self, entry: dict[str, Any]) -> str:
        name = self._get(entry, "vhost", default=self._vhost or None)
        if not self._has_vhost(name):
            self._fail("vhost", f"no vhost '{name}' here or in the file")
        return str(name)

    def _user_of(self, entry: dict[str, Any]) -> str:
        name = self._get(entry, "user")
        if name not in self._node.users and not any(user.name == name for user in self._found.users):
            self._fail("user", f"no user '{name}' here or in the file")
        return str(name)

    # --- entries

    def _vhost_entry(self, entry: dict[str, Any]) -> None:
        name = self._get(entry, "name")
        if not name or not name.isprintable() or name in self._found.vhosts:
            self._fail("name", f"{name!r:.80} is not the printable name of another vhost")
        self._found.vhosts.append(name)
        metadata = self._get(entry, "metadata", dict, {})
        description = self._get(entry, "description", default=metadata.get("description") or "")
        tags = entry.get("tags", metadata.get("tags")) or []
        tags = [each.strip() for each in tags.split(",")] if isinstance(tags, str) else tags
        if not isinstance(tags, list) or not all(isinstance(each, str) for each in tags):
            self._fail("tags", "must be a list of texts")
        if description or tags:
            self._found.about[name] = (description, tuple(tags))
        kind = entry.get("default_queue_type") or metadata.get("default_queue_type")
        if kind not in (None, "undefined"):
            if kind not in QUEUE_TYPES:
                self._fail("default_queue_type", f"must be one of {', '.join(QUEUE_TYPES)}")
            self._found.queue_types[name] = kind
        limits = entry.get("limits") or {}
        if isinstance(limits, list):
            limits = {each["name"]: each["value"] for each in limits if isinstance(each, dict) and len(each) >= 2}
        if limits:
            self._found.limits[name] = checked_limits(limits, VHOST_LIMITS, f"vhost '{name}'")

    def _user(self, entry: dict[str, Any]) -> None:
        name = self._get(entry, "name")
        keys = ("name", "password_hash", "hashing_algorithm", "tags", "limits")
        given: dict[str, Any] = {key: entry[key] for key in keys if entry.get(key) is not None}
        if isinstance(given.get("limits"), list):
            del given["limits"]
        if entry.get("password"):
            given["password_hash"], given["hashing_algorithm"] = hash_new(self._get(entry, "password"))
        given.setdefault("password_hash", "")
        if "hashing_algorithm" not in given:  # RabbitMQ wrote none when it had md5 alone.
            given["hashing_algorithm"] = MD5 if is_hash(str(given["password_hash"]), MD5) else SHA256
        if any(user.name == name for user in self._found.users):
            self._fail("name", f"user '{name}' is there twice")
        self._found.users.append(User.from_definition(given))

    def _permission(self, entry: dict[str, Any]) -> None:
        texts = [self._get(entry, field) for field in ("configure", "write", "read")]
        self._found.permissions.append(Permission(self._user_of(entry), self._vhost_of(entry), *texts))

    def _topic_permission(self, entry: dict[str, Any]) -> None:
        texts = [self._get(entry, field) for field in ("exchange", "write", "read")]
        self._found.topic_permissions.append(TopicPermission(self._user_of(entry), self._vhost_of(entry), *texts))

    def _parameter(self, entry: dict[str, Any]) -> None:
        component, name, vhost = self._get(entry, "component"), self._get(entry, "name"), self._vhost_of(entry)
        if "value" not in entry:
            self._fail("value", "is missing")
        if component == OPERATOR_POLICY:
            value = self._get(entry, "value", dict)
            policy = {"name": name, **{key: value[key] for key in ("pattern", "definition", "priority", "apply-to")
                                       if key in value}}  # fmt: skip
            self._found.operator_policies.append((vhost, self._made(policy, operator=True)))
        elif component == VHOST_LIMITS_COMPONENT:
            limits = checked_limits(self._get(entry, "value", dict), VHOST_LIMITS, f"vhost '{vhost}'")
            self._found.limits[vhost] = limits
        elif not component or not name:
            self._fail("component" if name else "name", "must not be empty")
        else:
            key = Key(component, vhost, name)
            check_value(key, entry["value"], user="", may_enter=self._has_vhost)
            self._found.parameters[key] = entry["value"]

    def _has_vhost(self, name: str) -> bool:
        return name in self._node.vhosts or name in self._found.vhosts

    def _global_parameter(self, entry: dict[str, Any]) -> None:
        name = self._get(entry, "name")
        if not name or "value" not in entry:
            self._fail("value" if name else "name", "is missing")
        self._found.parameters[Key("", "", name)] = entry["value"]

    def _policy(self, entry: dict[str, Any]) -> None:
        keys = ("name", "pattern", "definition", "priority", "apply-to")
        policy = {key: entry[key] for key in keys if key in entry}
        self._found.policies.append((self._vhost_of(entry), self._made(policy, operator=False)))

    def _made(self, entry: dict[str, Any], *, operator: bool) -> Policy:
        try:
            return Policy.from_entry(entry, operator=operator)
        except AMQPError as error:
            self._fail("", explain(entry, APPLY_TO, operator=operator) or str(error))
            raise

    def _thing(self, entry: dict[str, Any], type_: str) -> Thing:
        name = self._get(entry, "name")
        if not name or len(name.encode("utf-8", "surrogateescape")) > 255:
            self._fail("name", "must have 1 to 255 octets")
        return Thing(
            self._vhost_of(entry), name, type_, self._get(entry, "durable", bool, True),
            self._get(entry, "auto_delete", bool, False), self._get(entry, "internal", bool, False),
            self._get(entry, "arguments", dict, {}),
        )  # fmt: skip

    def _exchange(self, entry: dict[str, Any]) -> None:
        thing = self._thing(entry, self._get(entry, "type"))
        if thing.name.startswith(RESERVED_PREFIX):
            return  # Those are there by themselves.
        exchange_type(thing.type)
        check_exchange_arguments(thing.type, thing.arguments, f"exchange '{thing.name}' in vhost '{thing.vhost}'")
        self._found.exchanges.append(thing)

    def _queue(self, entry: dict[str, Any]) -> None:
        thing = self._thing(entry, "")
        arguments = {name: value for name, value in thing.arguments.items() if value is not None}
        kind = entry.get("type")  # RabbitMQ 3.13 and later say it there, too.
        if kind in ("quorum", "stream") and "x-queue-type" not in arguments:
            arguments["x-queue-type"] = kind
        check_queue_arguments(
            thing.name, thing.vhost, arguments, durable=thing.durable, auto_delete=thing.auto_delete
        )
        self._found.queues.append(thing._replace(arguments=arguments))

    def _binding(self, entry: dict[str, Any]) -> None:
        vhost, kind = self._vhost_of(entry), self._get(entry, "destination_type")
        if kind not in ("queue", "exchange"):
            self._fail("destination_type", f"must be queue or exchange, not {kind!r:.60}")
        source, destination = self._get(entry, "source"), self._get(entry, "destination")
        if not source:
            return  # The default exchange has its bindings by itself.
        found = self._found
        if not self._is_there(vhost, source, "exchanges", found.exchanges):
            self._fail("source", f"no exchange '{source}' in vhost '{vhost}' here or in the file")
        if not self._is_there(vhost, destination, f"{kind}s", found.queues if kind == "queue" else found.exchanges):
            self._fail("destination", f"no {kind} '{destination}' in vhost '{vhost}' here or in the file")
        arguments = self._get(entry, "arguments", dict, {})
        found.bindings.append(Bound(vhost, source, destination, kind, self._get(entry, "routing_key"), arguments))

    def _is_there(self, vhost: str, name: str, things: str, found: list[Thing]) -> bool:
        there = self._node.vhosts.get(vhost)
        if there is not None and name in getattr(there, things):
            return True
        if things == "exchanges" and name.startswith(RESERVED_PREFIX):
            return name in _SYSTEM
        if len(self._names) != len(self._found.queues) + len(self._found.exchanges):
            self._names = {(each.vhost, each.name, bool(each.type)) for each in [*self._found.queues,
                                                                              *self._found.exchanges]}  # fmt: skip
        return (vhost, name, things == "exchanges") in self._names


_SYSTEM = frozenset({"amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic", "amq.rabbitmq.trace"})


def line_of(text: str, section: str, index: int) -> int:
    """The line on which an entry of a list begins, or with index -1 the list; 0: it cannot be found."""
    import json

    decoder = json.JSONDecoder()
    try:
        for name, at in _members(text, decoder):
            if name == section:
                if index < 0:
                    return text.count("\n", 0, at) + 1
                for number, (begin, _) in enumerate(_elements(text, at, decoder)):
                    if number == index:
                        return text.count("\n", 0, begin) + 1
    except (ValueError, IndexError):
        pass
    return 0


def _members(text: str, decoder: "JSONDecoder") -> Iterator[tuple[str, int]]:
    """The names in the outermost object, and where their values begin."""
    at = _skip(text, 0) + 1
    while True:
        at = _skip(text, at)
        if text[at] == "}":
            return
        name, at = decoder.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        yield name, at
        _, at = decoder.raw_decode(text, at)
        at = _skip(text, at)
        at += text[at] == ","


def _elements(text: str, at: int, decoder: "JSONDecoder") -> Iterator[tuple[int, int]]:
    """Where the elements of the list at ``at`` begin and end."""
    at += 1
    while True:
        at = _skip(text, at)
        if text[at] == "]":
            return
        begin = at
        _, at = decoder.raw_decode(text, at)
        yield begin, at
        at = _skip(text, at)
        at += text[at] == ","


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at

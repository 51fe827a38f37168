"""The policies of one vhost, in ``policies.json`` and ``operator-policies.json``: settings for queues and exchanges,
which are chosen by name.

    [{"name": ..., "pattern": ..., "apply-to": ..., "definition": {...}, "priority": 0}, ...]

The shape is that of ``policies`` in RabbitMQ's definitions, without the vhost.  One policy and one operator policy
apply to a queue or exchange: of the matching ones, the one with the highest priority.  A change is on the disk before
the policies here change.  The caller must then apply it to the queues and exchanges (``Upkeep.apply_policies``).

To search a name in a costly pattern can take milliseconds, and there may be thousands of policies.  So ``search`` goes
in pieces, and a request that needs its outcome is done again when it is known (``check_known``).  Queues and exchanges
keep the outcome: no publish searches.  Knows nothing of what the keys of a definition do.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

from brokerd.errors import NotAnsweredYet, NotFound, PreconditionFailed, StoreError
from brokerd.patterns import PatternError, compiled
from brokerd.pieces import add_work, do_first_piece
from brokerd.policies.keys import NOT_FOR, ONE_OF_UPSTREAMS, fault, format_json_term, merged
from brokerd.store import json_file
from brokerd.store.disk import Disk

FILE = "policies.json"
OPERATOR_FILE = "operator-policies.json"
# Each value of apply-to (RabbitMQ), and the kinds of things that it covers.
APPLY_TO = {
    "all": frozenset({"classic_queues", "quorum_queues", "streams", "exchanges"}),
    "queues": frozenset({"classic_queues", "quorum_queues", "streams"}),
    "classic_queues": frozenset({"classic_queues"}),
    "quorum_queues": frozenset({"quorum_queues"}),
    "streams": frozenset({"streams"}),
    "exchanges": frozenset({"exchanges"}),
}
KINDS = APPLY_TO["all"]
KNOWN_MAX = 1024  # names whose policies are known before there is a thing that keeps them


class Policy:
    """One policy.  It never changes: a new Policy replaces it.  The higher ``priority`` wins."""

    __slots__ = ("apply_to", "definition", "kinds", "name", "pattern", "priority", "search")

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        apply_to: str = "all",
        priority: float = 0,
        operator: bool = False,
    ) -> None:
        """Raises PreconditionFailed for an invalid value, in RabbitMQ's words where RabbitMQ has a text for it."""
        if not isinstance(name, str) or not name or not name.isprintable():
            raise PreconditionFailed(f"policy name {name!r:.80} is not printable text")
        if not isinstance(apply_to, str) or apply_to not in APPLY_TO:
            raise PreconditionFailed(
                f"apply-to '{apply_to if isinstance(apply_to, str) else format_json_term(apply_to)}' unrecognised; "
                "should be one of: 'queues', 'classic_queues', 'quorum_queues', 'streams', 'exchanges', or 'all'"
            )
        if not isinstance(definition, dict) or not definition:
            raise PreconditionFailed("no policy provided")
        if not isinstance(priority, int | float) or isinstance(priority, bool) or priority != priority:
            raise PreconditionFailed(f"priority should be a number, actually was {format_json_term(priority)}")
        if not isinstance(pattern, str):
            raise PreconditionFailed(f"pattern should be a binary but was {format_json_term(pattern)}")
        try:
            self.search = compiled(pattern)
        except PatternError as error:
            raise PreconditionFailed(f"pattern should be regular expression but is invalid: {error}") from None
        reason = fault(definition, operator=operator)
        if reason is not None:
            raise PreconditionFailed(reason)
        self.name, self.pattern, self.definition = name, pattern, definition
        self.apply_to, self.priority = apply_to, priority
        self.kinds = frozenset(kind for kind in APPLY_TO[apply_to] if not NOT_FOR[kind] & definition.keys())

    def entry(self) -> dict[str, Any]:
        """The policy as RabbitMQ's definitions write it, without the vhost."""
        return {
            "name": self.name,
            "pattern": self.pattern,
            "apply-to": self.apply_to,
            "definition": self.definition,
            "priority": self.priority,
        }

    @classmethod
    def from_entry(cls, entry: dict[str, Any], *, operator: bool = False) -> "Policy":
        """The policy of an entry of definitions.  Raises PreconditionFailed."""
        return cls(
            entry.get("name"),  # type: ignore[arg-type]    # __init__ checks the types of all three.
            entry.get("pattern"),  # type: ignore[arg-type]
            entry.get("definition"),  # type: ignore[arg-type]
            apply_to=entry.get("apply-to", "all"),
            priority=entry.get("priority", 0),
            operator=operator,
        )


class PolicyFile:
    """The policies of one file.  A change that cannot be written raises OSError and has no effect."""

    __slots__ = ("_by_name", "_file", "_ranked", "_what", "operator", "path", "revision")

    def __init__(self, path: str, disk: Disk, *, operator: bool) -> None:
        """Read the file; a missing file means no policies.  Raises StoreError, OSError."""
        self.path = path
        self.operator = operator
        self.revision = 0  # of the policies in force
        self._what = "operator policy" if operator else "policy"
        self._file = json_file.JSONFile(path, disk)
        self._hold(self.read_again())
        self._file.take_over()

    def read_again(self) -> dict[str, Policy]:
        """The policies by name as the file has them now, none if it is missing; nothing changes before ``take_over``.

        Raises StoreError if the file cannot be used, OSError.
        """
        by_name: dict[str, Policy] = {}
        content = self._file.read()
        if content is None:
            return by_name
        keys = ("name", "pattern", "definition")
        for entry in json_file.rows(self.path, content, keys, ("apply-to", "priority")):
            try:
                policy = Policy.from_entry(entry, operator=self.operator)
            except PreconditionFailed as error:
                from brokerd.policies.words import explain

                reason = explain(entry, APPLY_TO, operator=self.operator) or error
                raise StoreError(f"{self.path}: {self._what} {entry['name']!r:.80}: {reason}") from None
            if policy.name in by_name:
                raise StoreError(f"{self.path}: {self._what} '{policy.name}' is there twice")
            by_name[policy.name] = policy
        return by_name

    def _hold(self, by_name: dict[str, Policy]) -> None:
        self.revision += 1
        self._by_name = by_name
        self._ranked = sorted(by_name.values(), key=lambda policy: (-policy.priority, policy.name))

    def take_over(self, found: dict[str, Policy]) -> json_file.Changes:
        """Let what ``read_again`` found hold.  Returns what that changes; the caller puts it in force."""
        before = _in_words(self._by_name)
        self._hold(found)
        self._file.take_over()
        return json_file.changes(before, _in_words(found))

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str | None) -> Policy | None:
        """The policy of this name, if there is one."""
        return self._by_name.get(name) if name is not None else None

    def get(self, name: str) -> Policy:
        """The policy of this name.  Raises NotFound."""
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFound(f"no {self._what} '{name}'") from None

    def put(self, policy: Policy) -> None:
        """Create or replace a policy that was made with the ``operator`` of this file."""
        self.changed([policy]).do()

    def delete(self, name: str) -> None:
        """Delete the policy of this name.  Raises NotFound."""
        self.changed(gone=[self.get(name).name]).do()

    def changed(self, policies: Iterable[Policy] = (), gone: Iterable[str] = ()) -> json_file.Change:
        """The change that puts these policies, and deletes those of these names.  The caller puts it in force."""
        after = {**self._by_name, **{policy.name: policy for policy in policies}}
        for name in gone:
            after.pop(name, None)
        return json_file.Change(
            self._file, lambda: [policy.entry() for policy in after.values()], lambda: self._hold(after)
        )

    def find_winner(self, name: str, kind: str) -> Generator[None, None, Policy | None]:
        """The policy that applies to a thing of this name and kind (one of ``KINDS``): of those that match the one with
        the highest priority.  A piece may end behind each policy.

        Among policies of equal priority the first by name wins; RabbitMQ leaves this open.
        """
        for each in self._ranked:
            if kind in each.kinds and each.search(name):
                return each
            yield
        return None


def _in_words(policies: dict[str, Policy]) -> dict[str, Any]:
    return {f"'{name}'": policy.entry() for name, policy in policies.items()}


class SearchGoesOn(NotAnsweredYet):
    """The policies for a name are not known yet, because the search takes longer than one piece."""

    def __init__(self, work: Iterator[None]) -> None:
        super().__init__()
        self._work = work

    def find_out(self, node: Any, then: Callable[[], object]) -> None:
        """Search on, in the next turns."""
        add_work(node.core, self._work, then)


class Effective(NamedTuple):
    """The names of the policy and the operator policy that apply to one thing, and the definition of both together."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: dict[str, Any] = {}  # callers must not change it


NONE_APPLY = Effective()


class Policies(PolicyFile):
    """All policies of a vhost: the users' policies are this object, the operators' are ``operators``.

    Upkeep sets two callbacks.  ``on_expires(queue)`` is called when a policy changes the ``expires`` of a queue, so
    that the queue is deleted in time.  ``on_journal(queue)`` is called for each durable queue that has or had an order
    journal.
    """

    __slots__ = ("_joined", "_known", "_known_at", "on_expires", "on_journal", "operators")

    def __init__(self, directory: str, disk: Disk) -> None:
        """Read both files in the vhost's directory; a missing file means no policies.  Raises StoreError, OSError."""
        super().__init__(os.path.join(directory, FILE), disk, operator=False)
        self.operators = PolicyFile(os.path.join(directory, OPERATOR_FILE), disk, operator=True)
        self._known: dict[tuple[str, str], Effective] = {}  # by name and kind
        self._joined: dict[tuple[str | None, str | None], Effective] = {}  # by the names of both policies
        self._known_at = (0, 0)  # the revisions of both files for which these hold
        self.on_expires: Callable[[Any], None] | None = None
        self.on_journal: Callable[[Any], None] | None = None

    def __bool__(self) -> bool:
        """Whether any policy or operator policy exists."""
        return bool(self._by_name) or len(self.operators) > 0

    @property
    def name_upstreams(self) -> bool:
        """Whether one of them federates something."""
        return any(name in policy.definition for policy in self for name in ONE_OF_UPSTREAMS)

    def effective(self, name: str, kind: str) -> Effective:
        """The settings by policies of a thing of this name and kind (one of ``KINDS``), as ``keys.merged`` joins them.
        Takes its time: see ``search``."""
        work = self.search(name, kind)
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: Effective = end.value
                return found

    def search(self, name: str, kind: str) -> Generator[None, None, Effective]:
        """Find what ``effective`` says, in pieces.  Policies that change meanwhile are searched again."""
        if not self:
            return NONE_APPLY
        while True:
            self._forget_former()
            known = self._known.get((name, kind))
            if known is not None:
                return known
            searched = self._known_at
            policy = yield from self.find_winner(name, kind)
            operators = yield from self.operators.find_winner(name, kind)
            if searched == (self.revision, self.operators.revision):
                break
        found = self._join(policy, operators)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[name, kind] = found
        return found

    def check_known(self, name: str, kind: str) -> None:
        """Search for 1 ms at most.  Raises SearchGoesOn if that is too short.

        A caller that makes things for a client asks this before it has done anything.
        """
        if not self or kind not in KINDS:  # As of arguments that no queue can have.
            return
        work = self.search(name, kind)
        if do_first_piece(work) is None:
            raise SearchGoesOn(work)

    def _forget_former(self) -> None:
        revisions = (self.revision, self.operators.revision)
        if self._known_at != revisions:
            self._known.clear()
            self._joined.clear()
            self._known_at = revisions

    def _join(self, policy: Policy | None, operators: Policy | None) -> Effective:
        """The settings of both together: one object for all things to which the same policies apply."""
        names = (policy.name if policy is not None else None, operators.name if operators is not None else None)
        found = self._joined.get(names)
        if found is None:
            if operators is None:
                found = Effective(*names, policy.definition) if policy is not None else NONE_APPLY
            elif policy is None:
                found = Effective(*names, operators.definition)
            else:
                found = Effective(*names, merged(policy.definition, operators.definition))
            self._joined[names] = found
        return found

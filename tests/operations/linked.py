"""A node with parameters and a book of links, as the operations on links see it."""

import json
from types import SimpleNamespace

from brokerd.links.book import LinkBook
from brokerd.links.state import LinkState
from brokerd.operations.jobs import ON_LOOP
from brokerd.operations.rows import LOCAL
from brokerd.policies.parameters import Key, Parameters
from brokerd.store.disk import Disk


class Linked:
    """``node`` has the vhosts "/" and "v"; ``links`` is its book."""

    def __init__(self, directory):
        self.links = LinkBook()
        self.parameters = Parameters(str(directory), Disk())
        self.parameters.on_change = lambda: self.links.changed()
        names = ("/", "v")
        self.node = SimpleNamespace(
            links=self.links, parameters=self.parameters, users={},
            vhosts={name: SimpleNamespace(name=name) for name in names})

    def put(self, component, name, value, vhost="/"):
        """Set a parameter."""
        self.parameters.changed({Key(component, vhost, name): value}).do()

    def state(self, kind, name, vhost="/", **fields):
        """Let the process tell of a link."""
        state = LinkState(kind, vhost, name, **fields)
        self.links.states[state.key] = state
        return state

    def list(self, row, **fields):
        """The rows of a list."""
        steps = row.function(self.node, LOCAL, row.request(**fields)).steps()
        try:
            while True:
                assert next(steps) is ON_LOOP
        except StopIteration as end:
            return json.loads(b"".join(end.value.parts))["items"]

    def do(self, row, **fields):
        """The answer of an operation that is no job."""
        return row.function(self.node, LOCAL, row.request(**fields))

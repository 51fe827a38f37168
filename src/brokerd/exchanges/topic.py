"""The topic exchange: binding keys are patterns of words between dots.

``*`` stands for one word, ``#`` for any number, none included.  The empty key
has no words; ``a..b`` has three, the second empty (RabbitMQ).

Patterns without ``*`` and ``#`` are strings to look up.  The others stand in a
trie, one step a word:

    stock.*.nyse   stock.#        root --stock--> (.) --*--> (.) --nyse--> held
                                                   `---#--> held

A key is followed along all its ways at once, word by word.  A place is in the set
of places reached only once, however many ways lead there, so a lookup costs at most
words x places, also for patterns made of nothing but ``#``.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from brokerd.exchanges import held
from brokerd.exchanges.exchange import Binding, Exchange


class _Place:
    """A place in the trie: who is bound here, and what words lead on."""

    __slots__ = ("after_hash", "held", "onward")

    def __init__(self, after_hash: bool) -> None:
        self.held: held.Held = None
        self.onward: dict[str, _Place] | None = None
        self.after_hash = after_hash  # reached by '#': any further word stays here


class TopicExchange(Exchange):
    """Routing key matches the pattern (AMQP 0-9-1, 3.1.3.3)."""

    __slots__ = ("_literal", "_root")

    type: ClassVar[str] = "topic"

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._literal: dict[str, held.Held] = {}
        self._root = _Place(after_hash=False)

    def destinations(self, routing_key: str, headers: dict | None) -> Iterable[Any]:
        literal = held.each(self._literal.get(routing_key))
        if not self._root.onward:
            return literal
        found = list(literal)
        for place in self._places(words_of(routing_key)):
            if place.held is not None:
                found += held.each(place.held)
        return found

    def _places(self, words: list[str]) -> Iterable[_Place]:
        """Where in the trie one can stand when all words are read."""
        places: dict[_Place, None] = {}
        _reach(places, self._root)
        for word in words:
            reached: dict[_Place, None] = {}
            for place in places:
                if place.after_hash:
                    _reach(reached, place)
                onward = place.onward
                if onward is not None:
                    _reach(reached, onward.get(word))
                    _reach(reached, onward.get("*"))
            if not reached:
                return ()
            places = reached
        return places

    def _added(self, binding: Binding) -> None:
        pattern, destination = binding.routing_key, binding.destination
        words = words_of(pattern)
        if _is_literal(words):
            self._literal[pattern] = held.including(self._literal.get(pattern), destination)
            return
        place = self._root
        for word in words:
            if place.onward is None:
                place.onward = {}
            onward = place.onward.get(word)
            if onward is None:
                onward = place.onward[word] = _Place(after_hash=word == "#")
            place = onward
        place.held = held.including(place.held, destination)

    def _removed(self, binding: Binding) -> None:
        pattern, destination = binding.routing_key, binding.destination
        words = words_of(pattern)
        if _is_literal(words):
            left = held.excluding(self._literal[pattern], destination)
            if left is None:
                del self._literal[pattern]
            else:
                self._literal[pattern] = left
            return
        way = [self._root]
        for word in words:
            way.append(way[-1].onward[word])  # type: ignore[index]
        way[-1].held = held.excluding(way[-1].held, destination)
        self._prune(way, words)

    @staticmethod
    def _prune(way: list[_Place], words: list[str]) -> None:
        """Take away the places at the end of ``way`` that lead nowhere any more."""
        for depth in range(len(words), 0, -1):
            if way[depth].held is not None or way[depth].onward:
                return
            before = way[depth - 1]
            del before.onward[words[depth - 1]]  # type: ignore[union-attr]
            if not before.onward:
                before.onward = None


def words_of(key: str) -> list[str]:
    """The words of a routing key or pattern."""
    return key.split(".") if key else []


def _is_literal(words: list[str]) -> bool:
    return "*" not in words and "#" not in words


def _reach(places: dict[_Place, None], place: _Place | None) -> None:
    """Add ``place``, and what a '#' that stands for no word leads to from there."""
    while place is not None and place not in places:
        places[place] = None
        place = place.onward.get("#") if place.onward is not None else None

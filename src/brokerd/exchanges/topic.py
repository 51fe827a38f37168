"""The topic exchange: binding keys are patterns of words between dots.

``*`` stands for one word, ``#`` for any number, none included.  The empty key
has no words; ``a..b`` has three, the second empty (RabbitMQ).

Patterns without ``*`` and ``#`` are strings to look up.  The others stand in a
trie, one step a word:

    stock.*.nyse   stock.#        root --stock--> (.) --*--> (.) --nyse--> held
                                                   `---#--> held

A key is followed along all its ways at once, word by word.  A place is in the set
of places reached only once, however many ways lead there, so a lookup costs at most
words x places, also for patterns made of nothing but ``#``.  With many patterns what
counts is how much memory a lookup touches: ``*`` and ``#`` are therefore no keys of
the table of words, and the place after most patterns has no table at all.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges import held
from brokerd.exchanges.exchange import Binding, Exchange, Lazily


class _Place:
    """A place in the trie: who is bound here, and what words lead on."""

    __slots__ = ("after_hash", "any_words", "held", "one_word", "words")

    def __init__(self, after_hash: bool) -> None:
        self.held: held.Held = None
        self.words: dict[str, _Place] | None = None
        self.one_word: _Place | None = None  # after a '*'
        self.any_words: _Place | None = None  # after a '#'
        self.after_hash = after_hash  # reached by '#': any further word stays here

    def next(self, word: str) -> "_Place | None":
        """The place after this word of a pattern."""
        if word == "*":
            return self.one_word
        if word == "#":
            return self.any_words
        return self.words.get(word) if self.words is not None else None

    def set_next(self, word: str, place: "_Place | None") -> None:
        """Put ``place`` there; None takes away what there is."""
        if word == "*":
            self.one_word = place
        elif word == "#":
            self.any_words = place
        elif place is not None:
            if self.words is None:
                self.words = {}
            self.words[word] = place
        elif self.words is not None:
            del self.words[word]
            self.words = self.words or None

    @property
    def is_needed(self) -> bool:
        """Somebody is bound here or further on."""
        return not (self.held is None and self.words is None and self.one_word is None and self.any_words is None)


class TopicExchange(Exchange):
    """Routing key matches the pattern (AMQP 0-9-1, 3.1.3.3)."""

    __slots__ = ("_literal", "_root")

    type: ClassVar[str] = "topic"
    matches_keys: ClassVar[bool] = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._literal: dict[str, held.Held] = {}
        self._root: _Place | None = None  # None: no pattern

    def destinations(self, routing_key: str, properties: Lazily) -> Collection[Any]:
        literal = held.each(self._literal.get(routing_key))
        if self._root is None:
            return literal
        found = list(literal)
        for place in self._places(self._root, words_of(routing_key)):
            bound = place.held
            if bound is not None:
                if type(bound) is dict:
                    found += bound
                else:
                    found.append(bound)
        return found

    @staticmethod
    def _places(root: _Place, words: list[str]) -> Collection[_Place]:
        """Where in the trie one can stand when all words are read."""
        places: dict[_Place, None] = {}
        _reach(places, root)
        for word in words:
            reached: dict[_Place, None] = {}
            for place in places:
                if place.after_hash:
                    _reach(reached, place)
                if place.words is not None:
                    _reach(reached, place.words.get(word))
                if place.one_word is not None:
                    _reach(reached, place.one_word)
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
        if self._root is None:
            self._root = _Place(after_hash=False)
        place = self._root
        for word in words:
            onward = place.next(word)
            if onward is None:
                onward = _Place(after_hash=word == "#")
                place.set_next(word, onward)
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
        way: list[_Place] = [self._root]  # type: ignore[list-item]
        for word in words:
            way.append(way[-1].next(word))  # type: ignore[arg-type]
        way[-1].held = held.excluding(way[-1].held, destination)
        for depth in range(len(words), 0, -1):  # Take away the places that lead nowhere any more.
            if way[depth].is_needed:
                return
            way[depth - 1].set_next(words[depth - 1], None)
        if not way[0].is_needed:
            self._root = None


def words_of(key: str) -> list[str]:
    """The words of a routing key or pattern."""
    return key.split(".") if key else []


def _is_literal(words: list[str]) -> bool:
    return "*" not in words and "#" not in words


def _reach(places: dict[_Place, None], place: _Place | None) -> None:
    """Add ``place``, and what a '#' that stands for no word leads to from there."""
    while place is not None and place not in places:
        places[place] = None
        place = place.any_words

"""The topic exchange: binding keys are patterns of words between dots.

``*`` stands for one word, ``#`` for any number of words, also none.  The empty key has no words; ``a..b`` has three
words, the second of them empty (RabbitMQ).

Patterns without ``*`` and ``#`` are strings in a dict.  The others stand in a trie, one step for each word:

    stock.*.nyse   stock.#        root --stock--> (.) --*--> (.) --nyse--> destinations
                                                   `---#--> destinations

A lookup follows all ways for a key at once, word by word.  The set of places that it has reached contains each place
once, however many ways lead there.  So a lookup costs at most words x places, also for patterns of nothing but ``#``.
Such patterns soon reach the same set again and again; where it is large, a lookup remembers what each word led to.
With many patterns the memory that a lookup touches decides its speed.  Therefore ``*`` and ``#`` are fields and not
keys of the table of words, and the place at the end of most patterns has no table at all.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties

_LARGE = 32  # Where so many places are reached, the step from them by a word is remembered for words that come again.


class _Place:
    """A place in the trie: the destinations bound here, and the words that lead on."""

    __slots__ = ("after_hash", "any_words", "destinations", "one_word", "words")

    def __init__(self, after_hash: bool) -> None:
        self.destinations: of_key.Destinations = None
        self.words: dict[str, _Place] | None = None
        self.one_word: _Place | None = None  # after a '*'
        self.any_words: _Place | None = None  # after a '#'
        self.after_hash = after_hash  # a '#' led here: any further word stays here

    def next(self, word: str) -> "_Place | None":
        """The place after this word of a pattern."""
        if word == "*":
            return self.one_word
        if word == "#":
            return self.any_words
        return self.words.get(word) if self.words is not None else None

    def set_next(self, word: str, place: "_Place | None") -> None:
        """Let this word of a pattern lead to ``place``; None removes the way."""
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
        """Whether a destination is bound here or further on."""
        return any(
            leads is not None for leads in (self.destinations, self.words, self.one_word, self.any_words)
        )


class TopicExchange(Exchange):
    """Routing key matches the pattern (AMQP 0-9-1, 3.1.3.3)."""

    __slots__ = ("_literal", "_root")

    type: ClassVar[str] = "topic"
    matches_keys: ClassVar[bool] = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._literal: dict[str, of_key.Destinations] = {}
        self._root: _Place | None = None  # None: no pattern

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        literal = of_key.list_once(self._literal.get(routing_key))
        if self._root is None:
            return literal
        found = list(literal)
        for place in self._places(self._root, words_of(routing_key)):
            bound = place.destinations
            if bound is not None:
                if type(bound) is dict:
                    found += bound
                else:
                    found.append(bound)
        return found

    @staticmethod
    def _places(root: _Place, words: list[str]) -> Collection[_Place]:
        """The places of the trie that the words lead to."""
        places: dict[_Place, None] = {}
        seen: dict[tuple[frozenset[_Place], str], dict[_Place, None]] = {}  # what a large set and a word lead to
        _reach(places, root)
        for word in words:
            step = None
            if len(places) >= _LARGE:
                step = frozenset(places), word
                known = seen.get(step)
                if known is not None:
                    places = known
                    continue
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
            if step is not None:
                seen[step] = reached
            places = reached
        return places

    def _added(self, binding: Binding) -> None:
        pattern, destination = binding.routing_key, binding.destination
        words = words_of(pattern)
        if _is_literal(words):
            self._literal[pattern] = of_key.add(self._literal.get(pattern), destination)
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
        place.destinations = of_key.add(place.destinations, destination)

    def _removed(self, binding: Binding) -> None:
        pattern, destination = binding.routing_key, binding.destination
        words = words_of(pattern)
        if _is_literal(words):
            left = of_key.remove(self._literal[pattern], destination)
            if left is None:
                del self._literal[pattern]
            else:
                self._literal[pattern] = left
            return
        way: list[_Place] = [self._root]  # type: ignore[list-item]
        for word in words:
            way.append(way[-1].next(word))  # type: ignore[arg-type]
        way[-1].destinations = of_key.remove(way[-1].destinations, destination)
        for depth in range(len(words), 0, -1):  # Remove the places that no longer lead to a destination.
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
    """Add ``place``, and the places that a '#' for no word leads to from there."""
    while place is not None and place not in places:
        places[place] = None
        place = place.any_words

"""The topic exchange: binding keys are patterns of words between dots.

``*`` stands for one word, ``#`` for any number of words, also none.  The empty key has no words; ``a..b`` has three
words, the second of them empty (RabbitMQ).

Patterns without ``*`` and ``#`` are strings in a dict.  The others stand in a trie, one step for each word:

    stock.*.nyse   stock.#        root --stock--> (.) --*--> (.) --nyse--> destinations
                                                   `---#--> destinations

A lookup follows all ways for a key at once, word by word.  The set of places that it has reached contains each place
once, however many ways lead there.  So a lookup costs at most words x places, also for patterns that consist only of
``#``.  Such patterns soon reach the same sets again and again.  Therefore the exchange remembers where a word leads
from a large set, until its patterns change: keys then cost their words alone.  All words that no pattern has count as
one word there, because they lead to the same places.

Patterns may be chosen so that each key leads to another set of many thousand places.  Then the key is looked up in
numbers with a bit for each place (states.py).  They are made when they are first needed, or when there are so many
patterns that it soon would take long; from then on each new pattern is added to them.

With many patterns the memory that a lookup touches decides its speed.  Therefore ``*`` and ``#`` are fields and not
keys of the table of words, and the place at the end of most patterns has no table at all.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

from brokerd.exchanges import destinations_of_key as of_key
from brokerd.exchanges.exchange import Binding, Exchange, LazyProperties
from brokerd.exchanges.states import States

WILD = frozenset(("*", "#"))  # the words of a pattern that stand for others
_LARGE = 32  # Where so many places are reached, the step from them by a word is remembered.
_HUGE = 2048  # Where so many places are reached, the key is looked up by bits.
_NUMBERED_FROM = 1024  # So many patterns have numbers before a key needs them.
_GONE_MOST = 1024  # patterns that went, beyond as many as there are, before the numbers are made anew
_REMEMBERED_MOST = 32  # places of remembered sets, and steps between them, for each pattern and word of the exchange
_NO_WORD = "*"  # stands for a word that no pattern has: in a pattern '*' is no word, so that no place leads on by it


class _Place:
    """A place in the trie: the destinations bound here, and the words that lead on."""

    __slots__ = ("after_hash", "any_words", "destinations", "numbered", "one_word", "words")

    def __init__(self, after_hash: bool) -> None:
        self.destinations: of_key.Destinations = None
        self.words: dict[str, _Place] | None = None
        self.one_word: _Place | None = None  # after a '*'
        self.any_words: _Place | None = None  # after a '#'
        self.after_hash = after_hash  # a '#' led here: any further word stays here
        self.numbered = 0  # the number of the last States that has the pattern that ends here

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


class _Known:
    """A set of places that is remembered, and the numbers of the sets that words lead to from there."""

    __slots__ = ("after", "found", "places")

    def __init__(self, places: Collection[_Place]) -> None:
        self.places = places
        self.after: dict[str, int] = {}
        self.found: list[Any] | None = None  # the destinations bound at the places, once they have been asked for


class _Memory:
    """The sets of places that keys have led to, by number, as long as the exchange's patterns stay as they are.

    It holds at most ``most`` places and steps.  One too many makes it forget all sets.  Sets refer to each other by
    number, so that they go without the garbage collector.
    """

    __slots__ = ("_held", "_most", "_numbers", "_sets")

    def __init__(self, most: int) -> None:
        self._numbers: dict[frozenset[_Place], int] = {}
        self._sets: list[_Known] = []
        self._held = 0
        self._most = most

    def number(self, places: Collection[_Place]) -> int:
        """The number of the set of these places, which is remembered from now on."""
        key = frozenset(places)
        number = self._numbers.get(key)
        if number is None:
            self._hold(len(places))
            number = self._numbers[key] = len(self._sets)
            self._sets.append(_Known(places))
        return number

    def after(self, number: int, word: str) -> int:
        """The number of the set that a word leads to from that of ``number``, which may be forgotten then."""
        known = self._sets[number]
        onward = known.after.get(word)
        if onward is None:
            self._hold(1)
            onward = known.after[word] = self.number(_step(known.places, word))
        return onward

    def is_huge(self, number: int) -> bool:
        """Whether a step from the set of this number would cost too much."""
        return len(self._sets[number].places) >= _HUGE

    def places(self, number: int) -> Collection[_Place]:
        """The places in the set."""
        return self._sets[number].places

    def found(self, number: int) -> list[Any]:
        """The destinations that are bound at the places of the set."""
        known = self._sets[number]
        if known.found is None:
            self._hold(len(known.places))
            known.found = _bound_at(known.places)
        return known.found

    def _hold(self, more: int) -> None:
        self._held += more
        if self._held > self._most:
            self._numbers.clear()
            self._sets.clear()
            self._held = more


class TopicExchange(Exchange):
    """Routing key matches the pattern (AMQP 0-9-1, 3.1.3.3)."""

    __slots__ = ("_gone", "_literal", "_memory", "_numbered", "_pattern_count", "_root", "_states", "_words")

    type: ClassVar[str] = "topic"
    matches_keys: ClassVar[bool] = True

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self._literal: dict[str, of_key.Destinations] = {}
        self._root: _Place | None = None  # None: no pattern
        self._pattern_count = 0  # bindings with one: a delayed exchange keeps the bindings of its inner one itself
        self._words: dict[str, int] = {}  # of patterns: how often each is in one
        self._memory: _Memory | None = None  # None: nothing is remembered
        self._states: States | None = None  # None: not needed yet, or too many of its patterns have gone
        self._numbered = 0  # how many States there were
        self._gone = 0  # patterns in it to which nothing is bound any more

    def destinations(self, routing_key: str, properties: LazyProperties) -> Collection[Any]:
        literal = of_key.list_once(self._literal.get(routing_key))
        if self._root is None:
            return literal
        return [*literal, *self._found(words_of(routing_key))]

    def _found(self, words: list[str]) -> list[Any]:
        """The destinations of the patterns that the words match; one may be there more than once."""
        places: Collection[_Place] = _first_places(self._root)
        for at, word in enumerate(words):
            if len(places) >= _LARGE:
                memory, number = self._remembered(places, words[at:])
                return self._found_by_bits(words) if number is None else memory.found(number)
            places = _step(places, word)
            if not places:
                return []
        return _bound_at(places)

    def destinations_of_keys(self, keys: Sequence[str], properties: LazyProperties) -> Collection[Any]:
        found: dict[Any, None] = {}
        for key in keys:
            found.update(dict.fromkeys(of_key.list_once(self._literal.get(key))))
        if self._root is None:
            return found
        known, reached = self._words, dict[_Place, None]()
        ways = {tuple([word if word in known else _NO_WORD for word in words_of(key)]): None for key in keys}
        sets: dict[int, Collection[_Place]] = {}  # A remembered one may come often.
        for words in ways:
            places = self._places(words)
            if places is None:
                found.update(dict.fromkeys(self._found_by_bits(words)))
            else:
                sets[id(places)] = places
        for places in sets.values():
            reached.update(dict.fromkeys(places))
        found.update(dict.fromkeys(_bound_at(reached)))
        return found

    def _places(self, words: Sequence[str]) -> Collection[_Place] | None:
        """The places that the words lead to; None: by a set that is too large."""
        places: Collection[_Place] = _first_places(self._root)
        for at, word in enumerate(words):
            if len(places) >= _LARGE:
                memory, number = self._remembered(places, words[at:])
                return None if number is None else memory.places(number)
            places = _step(places, word)
        return places

    def _remembered(self, places: Collection[_Place], words: Sequence[str]) -> tuple[_Memory, int | None]:
        """The memory, and the number of the set in it to which the words lead from a large set of places; None: they
        lead there by a set that is too large."""
        memory = self._memory
        if memory is None:
            memory = self._memory = _Memory(_REMEMBERED_MOST * (self._pattern_count + len(self._words)))
        number = memory.number(places)
        for word in words:
            if memory.is_huge(number):
                return memory, None
            number = memory.after(number, word if word in self._words else _NO_WORD)
        return memory, number

    def _found_by_bits(self, words: Sequence[str]) -> list[Any]:
        """The destinations that all words of a key lead to, from any place."""
        found: list[Any] = []
        for place in (self._states or self._make_states()).found(words):
            _add_bound(found, place.destinations)
        return found

    def _make_states(self) -> States:
        self._numbered += 1
        self._gone = 0
        self._states = made = States(())
        for words, place in _patterns(self._root):
            place.numbered = self._numbered
            made.add(words, place)
        return made

    def _note_pattern(self, words: list[str], place: _Place) -> None:
        """Have the pattern that ends at the place, where something is bound, in the numbers."""
        if self._states is None:
            if self._pattern_count >= _NUMBERED_FROM:
                self._make_states()
        elif place.numbered != self._numbered:
            place.numbered = self._numbered
            self._states.add(words, place)

    def _note_gone(self, place: _Place) -> None:
        """Something is not bound any more at the place."""
        if self._states is not None and place.destinations is None:
            self._gone += 1
            if self._gone > self._pattern_count + _GONE_MOST:
                self._states = None

    def _added(self, binding: Binding) -> None:
        pattern, destination = binding.routing_key, binding.destination
        words = words_of(pattern)
        if _is_literal(words):
            self._literal[pattern] = of_key.add(self._literal.get(pattern), destination)
            return
        self._memory = None
        self._pattern_count += 1
        if self._root is None:
            self._root = _Place(after_hash=False)
        place = self._root
        for word in words:
            if word not in WILD:
                self._words[word] = self._words.get(word, 0) + 1
            onward = place.next(word)
            if onward is None:
                onward = _Place(after_hash=word == "#")
                place.set_next(word, onward)
            place = onward
        place.destinations = of_key.add(place.destinations, destination)
        self._note_pattern(words, place)

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
        self._memory = None
        self._pattern_count -= 1
        way: list[_Place] = [self._root]  # type: ignore[list-item]
        for word in words:
            if word not in WILD:
                self._words[word] -= 1
                if not self._words[word]:
                    del self._words[word]
            way.append(way[-1].next(word))  # type: ignore[arg-type]
        way[-1].destinations = of_key.remove(way[-1].destinations, destination)
        self._note_gone(way[-1])
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
    return WILD.isdisjoint(words)


def _first_places(root: _Place | None) -> dict[_Place, None]:
    """The places that a key is at before its first word."""
    places: dict[_Place, None] = {}
    _reach(places, root)
    return places


def _step(places: Collection[_Place], word: str) -> dict[_Place, None]:
    """The places that a word leads to from ``places``."""
    reached: dict[_Place, None] = {}
    for place in places:
        if place.after_hash:
            _reach(reached, place)
        if place.words is not None:
            _reach(reached, place.words.get(word))
        if place.one_word is not None:
            _reach(reached, place.one_word)
    return reached


def _bound_at(places: Collection[_Place]) -> list[Any]:
    """The destinations that are bound at the places."""
    found: list[Any] = []
    for place in places:
        _add_bound(found, place.destinations)
    return found


def _add_bound(found: list[Any], bound: of_key.Destinations) -> None:
    if type(bound) is dict:
        found += bound
    elif bound is not None:
        found.append(bound)


def _patterns(root: _Place | None) -> Iterator[tuple[tuple[str, ...], _Place]]:
    """The words of each pattern below ``root``, and the place where it ends."""
    ways: list[tuple[tuple[str, ...], _Place | None]] = [((), root)]
    while ways:
        words, place = ways.pop()
        if place is None:
            continue
        if place.destinations is not None:
            yield words, place
        ways += (((*words, "*"), place.one_word), ((*words, "#"), place.any_words))
        if place.words is not None:
            ways += [((*words, word), onward) for word, onward in place.words.items()]


def _reach(places: dict[_Place, None], place: _Place | None) -> None:
    """Add ``place``, and the places that a '#' for no word leads to from there."""
    while place is not None and place not in places:
        places[place] = None
        place = place.any_words

"""Patterns in numbers: against a naive matcher."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exchanges.naive import topic_matches

from brokerd.exchanges import states
from brokerd.exchanges.states import States

WORDS = st.lists(st.sampled_from(["a", "b", "c", "", "*", "#"]), max_size=8)
KEY = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=12)


@settings(max_examples=500)
@given(patterns=st.lists(WORDS, max_size=20), keys=st.lists(KEY, min_size=1, max_size=4),
       dense=st.sampled_from([0, 4, 64]), known=st.integers(0, 20))
def test_what_is_found_is_what_matching_each_pattern_finds(patterns, keys, dense, known):
    """Words with numbers of their own, and words with lists of their places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "_DENSE", dense)
        patch.setattr(states, "_DENSE_FROM", 1)
        all_of_them = States((words, number) for number, words in enumerate(patterns[:known]))
        for count in range(min(known, len(patterns)), len(patterns) + 1):
            for key in keys:
                matching = [number for number, words in enumerate(patterns[:count]) if topic_matches(words, key)]
                assert all_of_them.found(key) == matching
            if count < len(patterns):
                all_of_them.add(patterns[count], count)


def test_many_hashes_in_a_row_are_one():
    assert States([(["#"] * 100 + ["a"], "it")]).found(["a"]) == ["it"]


def test_words_of_few_patterns_have_no_large_number():
    patterns = [([f"word{number}", "#"], number) for number in range(1000)]
    all_of_them = States(patterns)
    assert all_of_them._dense == {}
    assert all_of_them.found(["word7", "x"]) == [7]

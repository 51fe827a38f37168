"""The table of what is missed names kinds and queues that there are."""

from tests.planter.kinds import KINDS
from tests.planter.missed import MISSED_TODAY


def test_the_table_of_misses_names_kinds_in_queues_in_which_they_are_planted():
    assert {name: sorted(set(queues.split()) - set(KINDS[name].queues)) for name, queues in MISSED_TODAY.items()} == {
        name: [] for name in MISSED_TODAY}


def test_every_kind_says_what_it_does_by_its_name():
    for kind in KINDS.values():
        assert kind.plant.__name__ == kind.name
        assert kind.queues

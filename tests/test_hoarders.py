"""Who holds the broker's memory while it is low, and does nothing with it."""

import pytest

from brokerd.hoarders import (
    LITTLE,
    MUCH_OCTETS,
    PATIENCE_SECONDS,
    STOPPED_PATIENCE_SECONDS,
    Hoarders,
    TransactionMemory,
)


class Holder:
    def __init__(self, held, moved=0):
        self.held, self.moved = held, moved
        self.ended = self.stopped = False

    def held_memory(self):
        return self.held

    def moved_octets(self):
        return self.moved

    def cut_off(self):
        self.ended = True


class World:
    """Connections, the turns of the data plane, and memory of which some is too much."""

    def __init__(self):
        self.connections, self.errands = {}, []
        self.excess_octets = 1 << 40
        self.hoarders = Hoarders(self, self)

    def add_errand(self, step):
        self.errands.append(step)

    def note_freed(self, octets):
        self.excess_octets = max(0, self.excess_octets - octets)

    def tick(self, second):
        self.connections = {each: None for each in self.connections if not each.ended}
        self.hoarders.tick(self.connections, float(second))
        while self.errands:
            self.errands = [step for step in self.errands if not step()]

    def run(self, begin, end, *holders):
        """Ask each second."""
        self.connections |= dict.fromkeys(holders)
        for second in range(begin, end):
            self.tick(second)


@pytest.fixture
def world():
    return World()


PATIENCE = int(PATIENCE_SECONDS)


def test_a_hoarder_is_cut_off_when_patience_is_over_and_no_sooner(world):
    holder = Holder(MUCH_OCTETS)
    world.run(100, 100 + PATIENCE, holder)
    assert not holder.ended
    world.run(100 + PATIENCE, 101 + PATIENCE)
    assert holder.ended


def test_who_is_stopped_by_the_broker_has_more_time_and_not_for_ever(world):
    holder = Holder(MUCH_OCTETS)
    holder.stopped = True
    world.run(0, int(STOPPED_PATIENCE_SECONDS), holder)
    assert not holder.ended
    world.run(int(STOPPED_PATIENCE_SECONDS), 1 + int(STOPPED_PATIENCE_SECONDS))
    assert holder.ended


@pytest.mark.parametrize(("part", "ends"), [(LITTLE, False), (LITTLE + 1, True)])
def test_who_moves_an_eighth_of_what_it_holds_while_patience_lasts_is_none(world, part, ends):
    holder = Holder(100 * MUCH_OCTETS)
    world.connections[holder] = None
    for second in range(100):
        holder.moved += holder.held // part * (second % (PATIENCE - 1) == 0)
        world.tick(second)
    assert holder.ended is ends


def test_drops_make_no_difference(world):
    holder = Holder(MUCH_OCTETS)
    for second in range(PATIENCE + 1):
        holder.moved += 100
        world.run(second, second + 1, holder)
    assert holder.ended


def test_who_holds_little_is_none(world):
    holder = Holder(MUCH_OCTETS - 1)
    world.run(0, 100, holder)
    assert not holder.ended


def test_those_that_hold_most_go_until_enough_is_free(world):
    holders = [Holder(MUCH_OCTETS * factor) for factor in (1, 3, 2)]
    world.excess_octets = 3 * MUCH_OCTETS + 1
    world.run(0, PATIENCE + 1, *holders)
    assert [each.ended for each in holders] == [False, True, True]
    world.run(PATIENCE + 1, 100)
    assert not holders[0].ended


def test_scarcity_begins_anew(world):
    holder = Holder(MUCH_OCTETS)
    world.run(0, 15, holder)
    excess, world.excess_octets = world.excess_octets, 0
    world.run(15, 16)
    world.excess_octets = excess
    world.run(16, 30)
    assert not holder.ended


def test_who_held_little_for_a_while_begins_anew(world):
    holder = Holder(MUCH_OCTETS)
    world.run(0, 15, holder)
    holder.held = 0
    world.run(15, 16)
    holder.held = MUCH_OCTETS
    world.run(16, 30)
    assert not holder.ended


def test_a_client_that_goes_while_others_are_looked_at_is_asked_nothing(world):
    holder, gone = Holder(MUCH_OCTETS), Holder(MUCH_OCTETS)
    world.run(0, PATIENCE, holder, gone)
    world.hoarders.tick(world.connections, 100.0)
    gone.held_memory = gone.moved_octets = gone.cut_off = None
    del world.connections[gone]
    assert all(step() for step in world.errands)
    assert (holder.ended, gone.ended) == (True, False)


def test_the_next_look_begins_when_the_one_before_is_over(world):
    world.connections[Holder(MUCH_OCTETS)] = None
    for second in range(3):
        world.hoarders.tick(world.connections, float(second))
    assert len(world.errands) == 1


def test_a_transaction_that_holds_much_gets_no_memory_when_all_is_taken():
    memory = TransactionMemory()
    memory.most = 3 * MUCH_OCTETS
    assert memory.take(0, 3 * MUCH_OCTETS)
    assert not memory.take(3 * MUCH_OCTETS, 1)
    assert memory.octets == 3 * MUCH_OCTETS


def test_a_transaction_that_holds_little_gets_memory_when_all_is_taken():
    memory = TransactionMemory()
    memory.most = 3 * MUCH_OCTETS
    assert memory.take(0, 3 * MUCH_OCTETS)
    assert memory.take(0, MUCH_OCTETS)
    assert not memory.take(MUCH_OCTETS, 1)


def test_what_a_transaction_gives_back_another_gets():
    memory = TransactionMemory()
    memory.most = 3 * MUCH_OCTETS
    assert memory.take(0, 3 * MUCH_OCTETS)
    assert memory.take(3 * MUCH_OCTETS, -2 * MUCH_OCTETS)
    assert memory.take(0, 2 * MUCH_OCTETS)

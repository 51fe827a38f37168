"""How late ticks are."""

import pytest

from brokerd.server import lateness


@pytest.fixture
def clock(monkeypatch):
    """The time, which the test sets."""
    time = [100.0]
    monkeypatch.setattr(lateness, "monotonic", lambda: time[0])
    return time


def test_a_tick_is_as_late_as_it_comes_after_its_time(clock):
    late = lateness.Lateness()
    clock[0] = 105.0
    late.tick(1.0)  # The first one was not due at any time.
    assert (late.latest, late.most) == (0.0, 0.0)
    clock[0] = 106.5
    late.tick(1.0)
    assert (late.latest, late.most) == (0.5, 0.5)
    clock[0] = 107.25
    late.tick(1.0)  # A timer may be early.
    assert (late.latest, late.most) == (0.0, 0.5)
    late.forget()
    assert late.most == 0.0

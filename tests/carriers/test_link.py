from brokerd.carriers.link import LONGEST_DELAY_SECONDS, STEADY_TRIES, delay_after


def test_the_delay_of_a_link_holds_for_ten_tries_then_doubles_and_has_an_end():
    assert all(5 <= delay_after(failures, 5) <= 6 for failures in range(STEADY_TRIES))
    assert 10 <= delay_after(STEADY_TRIES, 5) <= 12
    assert 20 <= delay_after(STEADY_TRIES + 1, 5) <= 24
    assert LONGEST_DELAY_SECONDS <= delay_after(10_000, 5) <= 1.2 * LONGEST_DELAY_SECONDS
    assert delay_after(10_000, 1000) >= 1000


def test_links_that_failed_together_do_not_try_again_together():
    assert len({delay_after(0, 5) for _ in range(20)}) > 1

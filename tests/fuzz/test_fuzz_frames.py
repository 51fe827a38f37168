"""The fuzzer for a few seconds: the search itself is long, and made by hand or by .ci/sanitize."""

from tests.fuzz.fuzz_frames import fuzz, make_input


def test_some_thousand_spoiled_conversations_are_answered_with_amqp_errors_alone():
    done, errors = fuzz(inputs=6000, seed=1)
    assert done == 6000
    assert errors > 1000


def test_an_input_is_always_the_same():
    assert make_input(3, 4) == make_input(3, 4)
    assert make_input(3, 4) != make_input(3, 5)

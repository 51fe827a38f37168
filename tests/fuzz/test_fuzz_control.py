"""The control socket for a few seconds; the search itself is long, and made by hand or by .ci/sanitize."""

import random

import pytest
from tests.fuzz import fuzz_control


def test_some_thousand_requests_are_answered_in_words():
    counts = fuzz_control.fuzz(blocks=1, seed=1, inputs=2500)
    assert counts["inputs"] >= 2500
    assert all(counts[code] for code in (200, 400, 403, 404, 409))


def test_a_connection_of_a_seed_always_asks_the_same():
    def lines(seed):
        asker = fuzz_control.Asker(seed, "/folder")
        return [asker.line() for _ in range(300)]

    assert lines(3) == lines(3)
    assert lines(3) != lines(4)


def test_every_operation_that_changes_nothing_is_asked_for():
    asker = fuzz_control.Asker(1, "/folder")
    assert {asker.request()["verb"] for _ in range(2000)} >= {row.name for row in fuzz_control.rows()}


@pytest.mark.parametrize("answer", [
    {"error": "internal error: see the broker's log", "code": 500}, {"error": "two\nlines", "code": 400},
    {"error": "x", "code": 7}, {"error": "", "code": 400}, {"result": 1, "error": "x"}, {}])
def test_an_answer_that_must_not_be_is_a_fault(answer):
    judging = fuzz_control.Connection.__new__(fuzz_control.Connection)
    judging.lines = []
    with pytest.raises(fuzz_control.Fault):
        judging.judge(answer)


def test_a_request_without_an_answer_is_a_fault():
    class Silent:
        def shutdown(self, how):
            pass

        def recv(self, most):
            return b""

        def close(self):
            pass

    asking = fuzz_control.Connection.__new__(fuzz_control.Connection)
    asking.rng, asking.lines, asking.ending, asking.came = random.Random(1), [b"{}\n"], "read", b""
    asking.said_all, asking.sock, asking.counts = True, Silent(), fuzz_control.Counter()
    with pytest.raises(fuzz_control.Fault, match="1 requests, 0 answers"):
        asking.finish()

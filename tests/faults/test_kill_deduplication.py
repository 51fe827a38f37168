"""kill -9 at random moments while clients repeat keys: no key of a stored message is forgotten while its window lasts,
and no key is known without its message."""

import pytest
from tests.broker import Broker
from tests.faults.key_rounds import HURRY, HURRY_ENV, KeyRounds

ROUNDS = 6
ROUNDS_MAX = 60         # A busy machine may need more until everything was seen once.


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_kill_a_key_is_known_if_and_only_if_its_message_was_stored(tmp_path, seed):
    with Broker(tmp_path / "data", env=HURRY_ENV, first=HURRY) as broker:
        rounds = KeyRounds(broker, seed)
        while rounds.count < ROUNDS or not rounds.saw_everything:
            assert rounds.count < ROUNDS_MAX
            rounds.run()
        rounds.finish()

"""What engine B takes from the other one is what that one says."""

from tests.audit.test_letters import ALL, SURE, dead_queue, source_queue

from brokerd.audit.scan import Options
from brokerd.spark import by_arrays


def test_only_what_was_asked_for_is_judged_and_only_of_queues_that_it_concerns(tmp_path):
    source_queue(tmp_path, SURE)
    dead_queue(tmp_path, ALL[:3])
    for names, found in (({"dead_letters"}, [("source", "dead_letters", "violated", 1)]), ({"fifo"}, []),
                         ({"chain"}, [("source", "chain", "covers nothing", 0)])):
        rows = by_arrays.rows(str(tmp_path), Options(audits=frozenset(names)), None)
        assert [(row["queue"], row["audit"], row["verdict"], row["found"]) for row in rows] == found
    assert by_arrays.rows(str(tmp_path), Options(), "dead") == []

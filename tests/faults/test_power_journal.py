"""Power is cut while order journals are written: no message is lost for them, and no audit says what it cannot know.

The story is that of test_power; its queues have journals, and every delivery is counted as it is seen.
"""

import os
from collections import Counter

import pytest
from tests.faults.ledger import read_body
from tests.faults.test_power import QUEUES, Story
from tests.in_memory import in_memory  # noqa: F401 - its folders

from brokerd.audit import deliveries
from brokerd.audit.files import open_source
from brokerd.audit.lifecycle import lives
from brokerd.audit.segment import read_triple
from brokerd.audit.verdicts import audit
from brokerd.store.format import HEADER_OCTETS, QUEUE_NAME_FILE, folder_name

NEED_EVENTS = ("returned_first", "overtaking", "ack_without_delivery", "delivery_after_settle")
PROMISES = ("publish_order", "fifo", "returned_first", "ack_without_delivery", "double_settle",
            "delivery_after_settle", "holes", *deliveries.AUDITS, "time_order", "wrong_level", "numbers", "prefetch",
            "consumers",
            "words")


class Journaled(Story):
    arguments = {"x-order-journal": True}

    def __init__(self, directory, seed):
        super().__init__(directory, seed)
        self.delivered = Counter()      # (queue, message): how often a client had it

    def tick(self):
        self.machine.node.upkeep.tick(0)

    def receive(self, delivery):
        super().receive(delivery)
        self.delivered[delivery.key.decode(), read_body(delivery.body)] += 1

    def compare(self, name, came):
        super().compare(name, came)
        self.delivered.update((name, read_body(delivery.body)) for delivery in came)

    def stop(self):
        super().stop()
        for name in QUEUES:
            folder = os.path.join(self.directory, folder_name("/"), folder_name(name))
            if os.path.exists(folder):
                with open(os.path.join(folder, QUEUE_NAME_FILE), encoding="utf-8") as file:
                    assert file.read() == name

    def judge(self):
        """Over the files as they are: (queue, verdicts by audit, messages of which the journals lack a delivery)."""
        source = open_source(self.directory)
        for queue, judged in zip(source.queues(), audit(source), strict=True):
            if queue.queue not in self.definitions:
                lacking = 0
                for triple in queue.triples:
                    lacking += self.count_lacking(queue.queue, read_triple(source, triple))
                yield queue.queue, {row["audit"]: row for row in judged.audits}, lacking

    def count_lacking(self, name, data):
        """The messages of which the journal lacks a delivery.  It must not claim to cover their life."""
        life, lacking = lives(data), 0
        for index in range(life.seq.size):
            record = int(life.record[index])
            if record >= 0:
                at, header = int(data.positions[record]), data.headers[record]
                body = bytes(data.octets[at + HEADER_OCTETS + int(header["meta_len"]):at + int(header["length"])])
                if life.deliveries[index] < self.delivered[name, read_body(body)]:
                    lacking += 1
                    assert not life.covered[index], (name, read_body(body))
        return lacking


class Bare(Journaled):
    """Queues without journals: only what their clean stop says of them is judged."""

    arguments = {}

    def count_lacking(self, name, data):
        return 0


class InGroups(Journaled):
    """Each message is a group of its own (there is no header), waits when it comes back, and is parked in the end."""

    arguments = {"x-order-journal": True, "x-message-group": "exclusive", "x-delayed-retry-type": "all",
                 "x-delayed-retry-min": 5, "x-delivery-limit": 2, "x-delivery-limit-action": "park-group"}


# 1009 and 1091: a settled segment whose first page, or whose acks, never came to the disk.
@pytest.mark.parametrize(("kind", "seeds"), [
    *[(Journaled, range(start, start + 5)) for start in range(0, 25, 5)], (Journaled, (*range(25, 29), 1063)),
    (InGroups, range(5)), (InGroups, (*range(5, 8), 1009, 1091))])
def test_no_power_cut_makes_an_audit_wrong(tmp_path, kind, seeds):
    lost = 0
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        story = kind(tmp_path / str(seed), seed)
        try:
            story.tell()
            for name, rows, lacking in story.judge():
                wrong = [rows[audit] for audit in PROMISES if audit in rows and rows[audit]["verdict"] == "violated"
                         # This disk may forget a file while it is renamed: settled segments are gone then.
                         and not (audit == "holes" and rows["damage"]["found"])]
                assert not wrong, (name, wrong)
                if lacking:
                    lost += 1
                    judged = {rows[audit]["verdict"] for audit in NEED_EVENTS if audit in rows}
                    assert "held" not in judged, (name, rows)
            story.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, data in {os.path.abspath(story.directory)}") from error
    assert lost, "no cut took an event: nothing was tried"


def test_after_each_power_cut_a_start_and_a_clean_stop_leave_right_words_without_a_journal(tmp_path):
    checked = 0
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        story = Bare(tmp_path / str(seed), seed)
        story.tell()
        for name, rows, _ in story.judge():
            assert rows["words"]["verdict"] != "violated", (seed, name, rows["words"])
            checked += rows["words"]["checked"]
        story.end()
    assert checked > 20, "too few segments were judged: nothing was tried"

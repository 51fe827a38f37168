"""What brokers write is read as docs/formats.md says, and written again octet by octet."""

import pytest
from tests.planter.files import AcksFile, JournalFile, MessageFile, NotAsDescribed, read_word, word
from tests.planter.folder import Tree
from tests.planter.samples import QUEUES


@pytest.fixture(params=["dump", "stopped"])
def tree(request, sample):
    return Tree(getattr(sample, request.param))


def test_all_queues_are_read_with_all_their_messages(tree):
    assert set(tree.queues) == set(QUEUES)
    for queue in tree.queues.values():
        assert queue.journaled == ("x-order-journal" in QUEUES[queue.name])
        assert sum(len(part.records()) for part in queue.parts) >= 10


def test_what_nobody_changed_is_written_as_it_was(tree):
    for queue in tree.queues.values():
        for path, octets in queue.new_files().items():
            assert octets == queue.files[path], path


def test_checksums_and_words_that_are_made_anew_are_those_of_the_broker(tree):
    for queue in tree.queues.values():
        for part in queue.parts:
            for each in (*part.records()[:5], *part.records()[-2:], *part.events(), *part.entries()):
                each.touch()
        queue.count()
        for path, octets in queue.new_files().items():
            assert octets == queue.files[path], path


def test_kept_segments_boundaries_and_starts_are_there_to_be_planted_in(sample):
    queues = Tree(sample.dump).queues
    for name in ("plain", "levels", "limited", "single"):
        parts = queues[name].parts
        assert any(part.kept for part in parts), name
        assert sum(not part.kept for part in parts) >= 2 or name != "plain"
        assert any(event.type == 9 for part in parts for event in part.events()), name
    assert {part.level for part in queues["levels"].parts} == {0, 1, 2}


def test_a_word_without_its_complement_is_refused():
    assert read_word(word(77), 0) == 77
    with pytest.raises(NotAsDescribed):
        read_word(word(77)[:-1] + b"\0", 0)


@pytest.mark.parametrize("kind", [MessageFile, AcksFile, JournalFile])
def test_a_file_of_another_kind_is_refused(kind):
    with pytest.raises(NotAsDescribed):
        kind.read(bytes(128), *([[]] if kind is AcksFile else []))

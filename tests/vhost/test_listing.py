import json
from pathlib import Path

import pytest

from brokerd.errors import PreconditionFailed, StoreError
from brokerd.store.disk import Disk
from brokerd.vhost.listing import NEW, Listing, Row, entries, rows


def test_what_is_written_is_read_again_and_says_no_more_than_it_must():
    listed = {"/": Row({}, False), "two": Row({"max-queues": 3, "max-connections": 0}, True),
              "three": Row({}, False, default_queue_type="quorum")}
    written = entries(listed)
    assert written == [
        {"name": "/"}, {"name": "two", "limits": {"max-queues": 3, "max-connections": 0}, "tracing": True},
        {"name": "three", "default_queue_type": "quorum"}]
    assert rows("f", written) == listed


@pytest.mark.parametrize(("content", "text"), [
    ([{"name": 5}], "f: entry 1: name is not a text of its own"),
    ([{"name": "a"}, {"name": "a"}], "f: entry 2: name is not a text of its own"),
    ([{"name": "\ud800"}], "f: entry 1: name is not a text of its own"),
    ([{"name": "/", "tracing": None}], "f: entry 1: tracing is neither true nor false"),
    ([{"name": "/", "limits": {"max-queues": "1"}}], "f: entry 1: "),
    ([{"name": "/", "limits": {"max-things": 1}}], "f: entry 1: "),
    ([{"name": "/", "default_queue_type": "fast"}],
     "f: entry 1: default_queue_type is none of classic, quorum, stream"),
    ([{"name": "/", "default_queue_type": []}], "f: entry 1: default_queue_type is none of "),
    ([{"name": "/", "more": 1}], "f: entry 1 has an unknown key 'more'"),
    ([{}], "f: entry 1 has no name"),
    ({}, "f: not a list of objects"),
])
def test_what_is_no_listing_is_named(content, text):
    with pytest.raises(StoreError) as refused:
        rows("f", content)
    assert str(refused.value).startswith(text)


@pytest.fixture
def listing(tmp_path):
    return Listing(str(tmp_path), Disk())


class Full(Disk):
    def replace(self, path, content):
        raise OSError(28, "No space left on device")


def test_a_directory_without_the_file_gets_one_with_the_default_vhost(listing):
    assert listing.rows == {"/": NEW}
    assert json.loads(Path(listing.path).read_text()) == [{"name": "/"}]


def test_what_was_put_is_there_again_and_what_was_removed_is_not(listing, tmp_path):
    listing.put("two", Row({"max-queues": 3}, True))
    listing.put("three")
    listing.remove("/")
    assert Listing(str(tmp_path), Disk()).rows == listing.rows == {"two": Row({"max-queues": 3}, True), "three": NEW}
    assert (listing.rows["two"].limit("max-queues"), listing.rows["two"].limit("max-connections")) == (3, -1)


def test_rows_stay_as_they_were_where_the_file_cannot_be_written(listing, tmp_path):
    listing._file._disk = Full()
    for change in (lambda: listing.put("/", Row({}, True)), lambda: listing.set_limits("/", {"max-queues": 1}),
                   lambda: listing.put("two")):
        with pytest.raises(OSError, match="No space"):
            change()
    assert Listing(str(tmp_path), Disk()).rows == listing.rows == {"/": NEW}


def test_limits_are_replaced_and_what_is_none_is_refused(listing):
    listing.set_limits("/", {"max-queues": 3})
    with pytest.raises(PreconditionFailed, match="of vhost '/'"):
        listing.set_limits("/", {"max-things": 3})
    assert listing.rows["/"] == Row({"max-queues": 3}, False)
    listing.set_limits("/", {})
    assert listing.rows["/"] == NEW


def test_a_file_that_is_read_again_changes_the_rows_that_are_listed_and_adds_none(listing):
    Path(listing.path).write_text('[{"name": "/", "tracing": true}, {"name": "two"}]')
    found = listing.read_again()
    assert found.keys() == {"/", "two"}
    assert listing.rows == {"/": NEW}
    listing.take_over(found)
    assert listing.rows == {"/": Row({}, True)}
    Path(listing.path).write_text('[{"name": 5}]')
    with pytest.raises(StoreError):
        listing.read_again()
    assert listing.rows == {"/": Row({}, True)}


def test_what_waits_for_the_next_start_is_not_lost_when_something_else_is_written(listing, tmp_path):
    listing.put("old")
    Path(listing.path).write_text('[{"name": "/"}, {"name": "new", "tracing": true}]')
    listing.take_over(listing.read_again())
    listing.put("/", Row({}, True))
    listing.put("old", Row({}, True))  # It is open until the next start, and not listed any more.
    assert listing.rows == {"/": Row({}, True), "old": Row({}, True)}
    assert Listing(str(tmp_path), Disk()).rows == {"/": Row({}, True), "new": Row({}, True)}


def test_an_edited_file_is_not_written_over_before_it_was_read(listing):
    Path(listing.path).write_text('[{"name": "/"}, {"name": "two"}]')
    with pytest.raises(OSError, match="was edited and not read since: send HUP"):
        listing.put("/", Row({}, True))
    assert listing.rows == {"/": NEW}
    listing.take_over(listing.read_again())
    listing.put("/", Row({}, True))
    assert json.loads(Path(listing.path).read_text()) == [{"name": "/", "tracing": True}, {"name": "two"}]

import pytest

from brokerd.errors import StoreError
from brokerd.vhost.listing import Row, entries, rows


def test_what_is_written_is_read_again_and_says_no_more_than_it_must():
    listed = {"/": Row({}, False), "two": Row({"max-queues": 3, "max-connections": 0}, True)}
    written = entries(listed)
    assert written == [
        {"name": "/"}, {"name": "two", "limits": {"max-queues": 3, "max-connections": 0}, "tracing": True}]
    assert rows("f", written) == listed


@pytest.mark.parametrize(("content", "text"), [
    ([{"name": 5}], "f: entry 1: name is not a text of its own"),
    ([{"name": "a"}, {"name": "a"}], "f: entry 2: name is not a text of its own"),
    ([{"name": "\ud800"}], "f: entry 1: name is not a text of its own"),
    ([{"name": "/", "tracing": None}], "f: entry 1: tracing is neither true nor false"),
    ([{"name": "/", "limits": {"max-queues": "1"}}], "f: entry 1: "),
    ([{"name": "/", "limits": {"max-things": 1}}], "f: entry 1: "),
    ([{"name": "/", "more": 1}], "f: entry 1 has an unknown key 'more'"),
    ([{}], "f: entry 1 has no name"),
    ({}, "f: not a list of objects"),
])
def test_what_is_no_listing_is_named(content, text):
    with pytest.raises(StoreError) as refused:
        rows("f", content)
    assert str(refused.value).startswith(text)

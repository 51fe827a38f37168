from brokerd.links.book import LinkBook
from brokerd.links.state import LinkKey, LinkState


def test_without_a_process_a_book_has_no_links_and_restarts_none():
    book = LinkBook()
    book.changed()
    assert not book.states
    assert not book.restart(LinkKey("shovel", "/", "s"))


def test_states_are_told_apart_by_kind():
    book = LinkBook()
    for kind in ("shovel", "queue", "exchange"):
        state = LinkState(kind, "/", "x")
        book.states[state.key] = state
    assert [state.kind for state in book.of_kind("queue", "exchange")] == ["queue", "exchange"]

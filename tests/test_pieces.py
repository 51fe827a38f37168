"""Long work of one client is done in pieces, while the client rests."""

import pytest

from brokerd import pieces


class Client:
    """A connection, its node and its core."""

    def __init__(self):
        self.node = self.core = self
        self.rests, self.steps, self.done = 0, [], []

    def rest(self):
        self.rests += 1

    def go_on(self):
        self.rests -= 1

    def add_errand(self, step):
        self.steps.append(step)

    def work(self, count):
        for n in range(count):
            self.done.append(n)
            yield


@pytest.fixture
def client():
    return Client()


def test_nothing_is_done_before_the_first_turn(client):
    pieces.do_in_pieces(client, client.work(3))
    assert (client.done, client.rests) == ([], 1)


def test_work_that_is_short_is_one_piece(client):
    pieces.do_in_pieces(client, client.work(3))
    assert client.steps[0]()
    assert (client.done, client.rests) == ([0, 1, 2], 0)


def test_a_piece_ends_when_its_time_is_over_and_the_client_rests_until_the_last(client, monkeypatch):
    now = [0]
    monkeypatch.setattr(pieces, "monotonic_ns", lambda: now[0])

    def slow():
        for _ in client.work(6):
            now[0] += pieces.PIECE_NS // 2
            yield

    pieces.do_in_pieces(client, slow())
    (step,) = client.steps
    ends = []
    while not ends or not ends[-1][0]:
        ends.append((step(), len(client.done), client.rests))
    assert ends == [(False, 2, 1), (False, 4, 1), (False, 6, 1), (True, 6, 0)]


def test_a_client_whose_work_fails_goes_on(client):
    def broken():
        yield
        raise RuntimeError("of the work")

    pieces.do_in_pieces(client, broken())
    with pytest.raises(RuntimeError, match="of the work"):
        client.steps[0]()
    assert client.rests == 0


def test_the_first_piece_is_done_now_and_its_end_has_the_result_of_short_work(client, monkeypatch):
    def short():
        yield from client.work(3)
        return "done"

    end = pieces.do_first_piece(short())
    assert (end.value, client.done, client.steps) == ("done", [0, 1, 2], [])
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    work = short()
    assert pieces.do_first_piece(work) is None
    assert client.done == [0, 1, 2, 0]
    assert list(work) == [None, None]


def test_what_is_to_come_comes_once_however_often_it_is_asked_for():
    to_come, done = [], []
    ask = pieces.once(to_come.append, lambda: done.append(1))
    for _ in range(3):
        ask()
    assert (len(to_come), done) == (1, [])
    to_come.pop()()
    assert done == [1]
    ask()
    assert len(to_come) == 1


def test_what_asks_for_itself_comes_again():
    to_come = []
    ask = pieces.once(to_come.append, lambda: ask())
    ask()
    for _ in range(3):
        to_come.pop()()
        assert len(to_come) == 1


def test_a_long_list_is_let_go_in_pieces_and_a_short_one_at_once(client, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_NS", 0)
    items = [object() for _ in range(2 * pieces.DROPPED_AT_ONCE + 1)]
    pieces.drop_in_pieces(client.node.core, items)
    assert len(items) == 2 * pieces.DROPPED_AT_ONCE + 1
    (step,) = client.steps
    left = []
    while not step():
        left.append(len(items))
    assert left == [pieces.DROPPED_AT_ONCE + 1, 1, 0]
    pieces.drop_in_pieces(client.node.core, [object()])
    assert len(client.steps) == 1

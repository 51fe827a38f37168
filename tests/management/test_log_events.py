"""The broker's log as server-sent events."""

import http.client
import json
import os
import re
import signal

import pytest
from tests.broker import SECONDS
from tests.carriers.ends import await_true
from tests.management.http import basic

from brokerd.management import log_events


class NotSent(Exception):
    """The broker does not send its log."""


class Events:
    """A client that follows the log."""

    def __init__(self, shared, query="", last=None, path="/api/v2/log"):
        self.connection = http.client.HTTPConnection("127.0.0.1", shared.http.port, timeout=SECONDS)
        headers = {"authorization": basic("guest", "guest"), **({"last-event-id": last} if last else {})}
        self.connection.request("GET", f"{path}?{query}", headers=headers)
        self.answer = self.connection.getresponse()
        if self.answer.status != 200:
            said = self.answer.read()
            self.close()
            raise NotSent(said.decode())

    def until(self, text):
        """The number and the line in which the text is; what comes before is passed over."""
        number = 0
        while True:
            line = self.answer.readline()
            assert line
            if line.startswith(b"id: "):
                number = int(line[4:])
            if line.startswith(b"data: ") and text in (row := json.loads(line[6:]))["text"]:
                assert row["number"] == number
                return number, row

    def close(self):
        self.answer.close()
        self.connection.close()


def test_lines_come_as_they_are_written_and_a_client_that_comes_again_misses_none(shared):
    events = Events(shared)
    number, row = events.until("(AMQP)")
    assert row["level"] == "info"
    os.kill(shared.pid, signal.SIGHUP)
    later, _ = events.until("HUP")
    events.close()
    again = Events(shared, last=str(number))
    assert again.until("HUP")[0] == later
    again.close()
    # A number that this broker has not come to is one of its former life.
    former = Events(shared, "contains=AMQP", last="999999")
    assert former.until("(AMQP)")[0] == number
    former.close()


@pytest.mark.parametrize(("query", "status"), [("level=none", 400), ("after=-1", 400), ("no=1", 400)])
def test_a_query_that_is_wrong_is_refused(http, query, status):
    answer = http.ask("GET", f"/api/v2/log?{query}")
    assert answer.status == status
    assert answer.body["detail"]


def test_only_administrators_may_follow_the_log(http):
    http.do("user", "add", user="watcher", password="x", tags=["monitoring"], replace=True)
    assert http.as_user("watcher", "x").ask("GET", "/api/v2/log").status == 403


class Live(Events):
    """A client that follows the log by LavinMQ's call."""

    def __init__(self, shared, last=None):
        super().__init__(shared, last=last, path="/api/livelog")

    def until(self, text):
        """The id and the data of the event in which the text is."""
        number = b""
        while True:
            line = self.answer.readline()
            assert line
            assert not line.startswith(b"event: ")
            if line.startswith(b"id: "):
                number = line[4:].strip()
            if line.startswith(b"data: ") and text in (row := json.loads(line[6:]))[2]:
                return number.decode(), row


def test_lavinmqs_livelog_sends_severity_source_and_text_and_goes_on_behind_what_a_client_has(shared):
    live = Live(shared)
    first, row = live.until("(AMQP)")
    assert row[:2] == ["info", "brokerd"]
    os.kill(shared.pid, signal.SIGHUP)
    later, _ = live.until("HUP")
    live.close()
    again = Live(shared, last=first)
    assert again.until("")[0] != first
    again.close()
    again = Live(shared, last=first)
    assert again.until("HUP")[0] == later
    again.close()
    again = Live(shared, last=first.partition(".")[0])     # As LavinMQ's clients have it.
    assert again.until("HUP")[0] == later
    again.close()


@pytest.mark.parametrize("last", ["x", "1.2.3", "-1", "1." + "9" * 19])
def test_an_event_that_cannot_be_is_refused(http, last):
    assert http.ask("GET", "/api/livelog", last_event_id=last).status == 400


def test_all_kept_lines_are_a_text_to_be_saved(http):
    answer = http.ask("GET", "/api/logs")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == "attachment; filename=logs.txt"
    line = next(line for line in answer.body.decode().splitlines() if "(AMQP)" in line)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+00:00 \[INFO\] brokerd - listening on .*", line), line


@pytest.mark.parametrize("path", ["/api/livelog", "/api/logs"])
def test_only_administrators_may_see_the_log_by_lavinmqs_calls(http, path):
    http.do("user", "add", user="watcher", password="x", tags=["monitoring"], replace=True)
    assert http.as_user("watcher", "x").ask("GET", path).status == 401


def test_no_more_clients_follow_the_log_than_may(shared):
    followers = []
    while (follower := _follow(shared)) is not None:
        follower.until("(AMQP)")    # It counts from its first line on.
        followers.append(follower)
        assert len(followers) <= log_events.FOLLOWERS_MAX
    with pytest.raises(NotSent, match="100 clients follow the log already"):
        Live(shared)
    assert len(followers) > log_events.FOLLOWERS_MAX // 2   # Those of other tests may not be gone yet.
    for follower in followers:
        follower.close()
    await_true(lambda: (again := _follow(shared)) is not None and again.close() is None)


def _follow(shared):
    """A client that follows the log; None: it is refused, as too many do."""
    try:
        return Live(shared)
    except NotSent:
        return None

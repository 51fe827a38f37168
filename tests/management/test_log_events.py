"""The broker's log as server-sent events."""

import http.client
import json
import os
import signal

import pytest
from tests.broker import SECONDS
from tests.management.http import basic


class Events:
    """A client that follows the log."""

    def __init__(self, shared, query="", last=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", shared.http.port, timeout=SECONDS)
        headers = {"authorization": basic("guest", "guest"), **({"last-event-id": last} if last else {})}
        self.connection.request("GET", f"/api/v2/log?{query}", headers=headers)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

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

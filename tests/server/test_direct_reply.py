"""Direct reply-to with LavinMQ's name for it, against a real broker."""

import pika
import pytest
from tests.server.clients import close_all, connect


@pytest.fixture(autouse=True)
def closed(broker):
    """The broker need not wait for its clients to close."""
    yield
    close_all()


NAME = "amq.direct.reply-to"


def test_lavinmqs_name_asks_for_answers_too(broker):
    asker, answerer = connect(broker).channel(), connect(broker).channel()
    answerer.queue_declare("work")
    replies = []
    asker.basic_consume(NAME, lambda *delivery: replies.append(delivery[3]), auto_ack=True)
    for body in (b"1", b"2"):
        asker.basic_publish("", "work", body, pika.BasicProperties(reply_to=NAME))
    asker.queue_declare("work", passive=True)  # all of it has been worked
    for _ in range(2):
        _, properties, body = answerer.basic_get("work", auto_ack=True)
        assert properties.reply_to.startswith("amq.rabbitmq.reply-to.")
        answerer.basic_publish("", properties.reply_to, b"answer to " + body)
    answerer.queue_declare("work", passive=True)
    while len(replies) < 2:
        asker.connection.process_data_events(20)
    assert replies == [b"answer to 1", b"answer to 2"]


def test_flow_that_is_off_holds_no_answer_back(broker):
    """No queue could keep it: docs/compatibility.md says so."""
    asker, answerer = connect(broker).channel(), connect(broker).channel()
    answerer.queue_declare("work")
    replies = []
    asker.basic_consume(NAME, lambda *delivery: replies.append(delivery[3]), auto_ack=True)
    assert asker.flow(False) is False
    asker.basic_publish("", "work", b"1", pika.BasicProperties(reply_to=NAME))
    asker.queue_declare("work", passive=True)
    answerer.basic_publish("", answerer.basic_get("work", auto_ack=True)[1].reply_to, b"answer")
    while not replies:
        asker.connection.process_data_events(20)
    assert replies == [b"answer"]

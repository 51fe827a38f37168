"""Streams on pages: readers and their lag, reading from an offset with a filter, what comes live, what is copied."""

import pika
import pytest
from playwright.sync_api import expect
from tests.web.conftest import MS

expect.set_options(timeout=MS)


@pytest.fixture
def channel(site):
    """A channel of AMQP; the stream "events" has the messages 1 to 6, in turns for europe and asia."""
    channel = site.client()
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    for number in range(1, 7):
        publish(channel, number)
    yield channel
    channel.queue_delete("events")
    channel.connection.close()


def publish(channel, number):
    channel.basic_publish("", "events", b"event %d" % number, pika.BasicProperties(
        delivery_mode=2, headers={"x-stream-filter-value": "asia" if number % 2 else "europe"}))


def shown(window):
    """The payloads that the page shows."""
    return window.locator(".payload")


def read(window, offset, filters=""):
    window.get_by_label("From", exact=True).fill(offset)
    window.get_by_label("Filter values").fill(filters)
    window.get_by_role("button", name="Read").click()


def test_a_stream_is_read_from_an_offset_with_a_filter(site, channel):
    window = site.open("streams")
    window.get_by_role("link", name="events").click()
    expect(window.locator(".card", has_text="What is kept")).to_contain_text("7D")
    read(window, "3", "europe")
    expect(shown(window)).to_have_text(["event 4", "event 6"])
    read(window, "1h")
    expect(shown(window)).to_have_count(6)
    read(window, "soon")
    expect(window.locator(".notice")).to_contain_text("offset must be first, last, next, a number")


def test_messages_are_shown_as_they_come_the_newest_first(site, channel):
    window = site.open("streams/%2F/events")
    with window.expect_response("**/stream/read?**"):  # Events come from then on.
        window.get_by_role("button", name="Follow live").click()
    publish(channel, 7)
    publish(channel, 8)
    expect(shown(window)).to_have_text(["event 8", "event 7"])
    window.get_by_role("button", name="Stop following").click()
    publish(channel, 9)
    read(window, "9")
    expect(shown(window)).to_have_text(["event 9"])


def test_a_page_that_follows_goes_on_behind_its_last_message_when_the_network_is_back(site, channel):
    window = site.open("streams/%2F/events")
    with window.expect_response("**/stream/read?**"):
        window.get_by_role("button", name="Follow live").click()
    publish(channel, 7)
    expect(shown(window)).to_have_text(["event 7"])
    window.context.set_offline(True)
    publish(channel, 8)
    window.context.set_offline(False)
    publish(channel, 9)
    expect(shown(window)).to_have_text(["event 9", "event 8", "event 7"])


def test_a_reader_that_is_away_shows_its_lag_and_is_set_to_another_offset(site, channel):
    channel.basic_qos(prefetch_count=10)
    for method, _, _ in channel.consume("events", arguments={"x-stream-offset": "first", "x-stream-reader": "billing"}):
        channel.basic_ack(method.delivery_tag)
        if method.delivery_tag == 2:
            break
    channel.cancel()
    window = site.open("streams/%2F/events")
    row = window.locator("tr", has_text="billing")
    expect(row.locator("td").nth(1)).to_have_text("4")
    expect(row).to_contain_text("away")
    row.get_by_role("button", name="Set offset").click()
    window.get_by_label("Offset that billing reads next").fill("7")
    window.get_by_role("dialog").get_by_role("button", name="Set", exact=True).click()
    expect(row.locator("td").nth(1)).to_have_text("0")
    row.get_by_role("button", name="Forget").click()
    window.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(row).to_have_count(0)


def test_a_queue_is_copied_to_a_stream_and_its_settled_messages_are_counted_for_a_replay(site, channel):
    channel.queue_declare("source", durable=True, arguments={"x-retain-settled": "1D"})
    for _ in range(2):
        channel.basic_publish("", "source", b"copied", pika.BasicProperties(delivery_mode=2))
    window = site.open("queues/%2F/source")
    window.get_by_role("button", name="Copy to").click()
    window.get_by_label("To queue or stream").fill("events")
    window.get_by_role("dialog").get_by_role("button", name="Copy", exact=True).click()
    expect(window.locator(".notice")).to_have_text("2 messages copied.")
    window.get_by_role("button", name="Replay").click()
    window.get_by_role("dialog").get_by_role("button", name="Do it").click()
    expect(window.locator(".notice")).to_contain_text("0 settled messages can be replayed")
    channel.queue_delete("source")

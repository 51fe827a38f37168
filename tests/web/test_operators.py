"""What operators do on pages: send delayed messages on, put dead letters back, limit a vhost."""

import re

import pika
from playwright.sync_api import expect
from tests.web.conftest import AXE, MS, find_barriers

expect.set_options(timeout=MS)


def test_a_delayed_message_goes_on_before_its_time_and_another_is_dropped(site):
    channel = site.client()
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("reminders")
    channel.queue_bind("reminders", "later")
    for hours in (1, 2):
        channel.basic_publish("later", f"in {hours} h", b"x",
                              pika.BasicProperties(headers={"x-delay": hours * 3_600_000}))
    window = site.open("exchanges/%2F/later")
    card = window.locator(".card", has_text="Delayed messages")
    card.locator("tr", has_text="in 2 h").wait_for()
    assert not AXE.exists() or find_barriers(window) == []
    card.locator("tr", has_text="in 2 h").get_by_role("button", name="Deliver now").click()
    expect(card.locator("tr", has_text="in 2 h")).to_have_count(0)
    card.locator("tr", has_text="in 1 h").get_by_role("button", name="Drop").click()
    window.get_by_role("dialog").get_by_role("button", name="Drop").click()
    expect(card.get_by_text("0 wait.")).to_be_visible()
    assert channel.basic_get("reminders", auto_ack=True)[0].routing_key == "in 2 h"
    assert channel.basic_get("reminders", auto_ack=True)[0] is None
    channel.exchange_delete("later")
    channel.connection.close()


def test_dead_letters_are_put_back_where_they_died(site):
    channel = site.client()
    channel.queue_declare("dead")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.basic_publish("", "work", b"again")
    method, _, _ = channel.basic_get("work")
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.queue_declare("work", passive=True)  # The reject was read before this was answered.
    window = site.open("queues/%2F/dead")
    window.get_by_role("button", name="Browse").click()
    window.get_by_label("choose all that are shown").check()
    window.get_by_role("button", name="Redrive").click()
    window.get_by_role("dialog").get_by_role("button", name="Put back").click()
    expect(window.locator(".notice")).to_have_text("1 message put back.")
    assert channel.basic_get("work", auto_ack=True)[2] == b"again"
    channel.connection.close()


def test_a_vhost_gets_limits(site):
    window = site.open("vhosts")
    row = window.locator("tr", has=window.locator("b", has_text="/"))
    row.get_by_role("button", name="Limits").click()
    window.get_by_label("Limits of /").fill('{"max-queues": 500}')
    window.get_by_role("dialog").get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("max-queues 500")


def test_the_log_shows_what_comes_and_filters_it(site):
    window = site.open("log")
    lines = window.get_by_role("region", name="Log").locator("tbody tr")
    expect(lines.filter(has_text="(HTTP)")).to_have_count(1)
    connection = site.client().connection
    opened = lines.filter(has_text="guest /: opened").first  # other tests leave lines too
    expect(opened).to_be_visible()
    port = re.search(r":(\d+) guest", opened.inner_text())[1]
    window.get_by_label("With the text").fill(f":{port} guest /: closed after")
    expect(window.get_by_text("No line of the log is like that.")).to_be_visible()
    connection.close()
    expect(lines.filter(has_text="closed after")).to_have_count(1)
    window.get_by_label("Show").select_option("error")
    expect(window.get_by_text("No line of the log is like that.")).to_be_visible()

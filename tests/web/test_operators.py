"""What operators do on pages: send delayed messages on, put dead letters back, limit a vhost."""

import re

import pika
from playwright.sync_api import expect
from tests.management.http import Http
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


def test_the_log_can_be_saved(site):
    window = site.open("log")
    with window.expect_download() as saved:
        window.get_by_role("link", name="Download").click()
    assert saved.value.suggested_filename == "logs.txt"
    assert "[INFO] brokerd - listening on" in saved.value.path().read_text()


def test_the_log_shows_what_comes_and_filters_it(site):
    window = site.open("log")
    lines = window.get_by_role("region", name="Log").locator("tbody tr")
    expect(lines.filter(has_text="(HTTP)")).to_have_count(1)
    connection = site.client().connection
    clients = Http(site.port).do("connection", "list")["items"]  # other tests leave lines too
    mine = max(clients, key=lambda row: row["number"])
    port = mine["peer_port"]
    expect(lines.filter(has_text=f":{port} guest /: opened")).to_be_visible()
    window.get_by_label("With the text").fill(f":{port} guest /: closed after")
    expect(window.get_by_text("No line of the log is like that.")).to_be_visible()
    connection.close()
    expect(lines.filter(has_text="closed after")).to_have_count(1)
    window.get_by_label("Show").select_option("error")
    expect(window.get_by_text("No line of the log is like that.")).to_be_visible()


def test_it_is_shown_which_client_holds_which_message(site):
    channel = site.client()
    channel.queue_declare("held", durable=True)
    for number in range(3):
        channel.basic_publish("", "held", b"%d" % number)
    channel.basic_consume("held", lambda *_: None, consumer_tag="biller")
    channel.connection.process_data_events(0)
    window = site.open("queues/%2F/held")
    window.get_by_role("button", name="Show the 3 unacked").click()
    card = window.locator(".card", has_text="Messages that clients hold")
    expect(card.locator("tbody tr")).to_have_count(3)
    expect(card.locator("tbody tr").first).to_contain_text("biller")
    assert not AXE.exists() or find_barriers(window) == []
    card.get_by_role("button", name="Trace message 2").click()
    expect(window.locator("#trace")).to_contain_text("Message 2")
    channel.connection.close()
    expect(card.get_by_text("No client holds a message now.")).to_be_visible()


def test_an_audit_is_begun_on_its_page_and_its_verdict_and_report_are_read_there(site):
    channel = site.client()
    channel.queue_declare("audited", durable=True, arguments={"x-order-journal": True})
    channel.basic_publish("", "audited", b"x")
    channel.connection.close()
    window = site.open("audits")
    window.get_by_role("button", name="New audit").click()
    window.get_by_label("Queues").fill("audited")
    window.get_by_role("button", name="Begin").click()
    row = window.locator("tbody tr").first
    expect(row).to_contain_text("held")
    assert not AXE.exists() or find_barriers(window) == []
    with_report = row.get_by_role("link", name="Report").count()
    if with_report:  # What reports are written with is installed.
        with window.context.expect_page() as opened:
            row.get_by_role("link", name="Report").click()
        expect(opened.value).to_have_title(re.compile("Ordering audit"))
        assert opened.value.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") == "1180px"
    row.get_by_role("link", name="Audit 1").click()
    expect(window.get_by_text("1 message and 0 events of 1 queue were judged.")).to_be_visible()
    assert not AXE.exists() or find_barriers(window) == []
    window.get_by_role("button", name="Delete").click()
    window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(window.get_by_text("No audit and no dump yet.")).to_be_visible()


def test_messages_are_traced_and_the_file_is_saved_and_deleted(site):
    window = site.open("traces")
    expect(window.get_by_text("Nothing is traced now.")).to_be_visible()
    window.get_by_role("button", name="New trace").click()
    dialog = window.get_by_role("dialog")
    dialog.get_by_label("Name").fill("a/b")
    dialog.get_by_role("button", name="Begin").click()
    expect(window.locator(".notice.bad")).to_contain_text("the name of a trace is that of its file")
    dialog.get_by_label("Name").fill("seen here")
    dialog.get_by_label("Which messages").fill("publish.amq.fanout")
    dialog.get_by_label("Format").select_option("json")
    dialog.get_by_role("button", name="Begin").click()
    row = window.get_by_role("region", name="Table of traces").locator("tbody tr")
    expect(row).to_contain_text("running")
    channel = site.client()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "key", b"traced")
    expect(row.locator("td").nth(4)).to_have_text("1")
    row.get_by_role("button", name="Stop").click()
    expect(window.get_by_text("Nothing is traced now.")).to_be_visible()
    with window.expect_download() as saved:
        window.get_by_role("link", name="seen here.log").click()
    assert '"routing_keys": ["key"]' in saved.value.path().read_text()
    window.get_by_role("region", name="Files of traces").get_by_role("button", name="Delete").click()
    window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(window.get_by_role("link", name="seen here.log")).to_have_count(0)
    channel.connection.close()

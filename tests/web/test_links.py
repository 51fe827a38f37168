"""Shovels and federation on pages: made, paused, changed without their passwords, and why one does not run."""

import json
import time

import pytest
from playwright.sync_api import expect
from tests.management.http import Http
from tests.web.conftest import MS

expect.set_options(timeout=MS)
AWAY = "amqp://u:secret@127.0.0.1:1"


@pytest.fixture
def http(site):
    http = Http(site.port)
    yield http
    for component in ("shovel", "federation-upstream"):
        for row in http.get(f"/api/parameters/{component}"):
            http.ask("DELETE", f"/api/parameters/{component}/%2F/{row['name']}")


def fill(window, **fields):
    """Fill in the form of the dialog; _ stands for a space."""
    dialog = window.get_by_role("dialog")
    for label, text in fields.items():
        dialog.get_by_label(label.replace("_", " "), exact=True).fill(text)


def test_a_shovel_is_made_refused_paused_and_deleted(site, http):
    window = site.open("shovels")
    expect(window.get_by_text("No shovels.")).to_be_visible()
    window.get_by_role("button", name="New shovel").click()
    fill(window, Name="mover", Source_URI="amqp://", Source_queue="a", Source_exchange="b", Destination_URI=AWAY)
    window.get_by_role("button", name="Set").click()
    expect(window.locator(".notice")).to_contain_text("Cannot specify 'src-exchange' and 'src-queue'")
    fill(window, Source_exchange="", Destination_queue="c", More='{"src-prefetch-count": 7}')
    window.get_by_role("button", name="Set").click()
    row = window.locator("tr", has_text="mover")
    expect(row).to_contain_text("amqp://u:***@127.0.0.1:1")
    expect(row).to_contain_text("queue c")
    assert http.get("/api/parameters/shovel/%2F/mover")["value"] == {
        "src-uri": "amqp://", "src-queue": "a", "dest-uri": AWAY, "dest-queue": "c", "ack-mode": "on-confirm",
        "src-prefetch-count": 7}
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".tag")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".tag")).not_to_have_text("paused")
    row.get_by_role("button", name="Delete").click()
    window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(window.get_by_text("No shovels.")).to_be_visible()


def test_a_shovel_is_changed_and_its_password_is_neither_shown_nor_lost(site, http):
    value = {"src-uri": [AWAY, "amqp://"], "src-queue": "a", "dest-uri": "amqp://", "src-delete-after": "never"}
    assert http.ask("PUT", "/api/parameters/shovel/%2F/s", {"value": value}).status == 201
    assert http.ask("PUT", "/api/shovels/%2F/s/pause").status == 204
    window = site.open("shovels")
    window.get_by_role("button", name="Edit").click()
    expect(window.get_by_label("Source URI")).to_have_value("amqp://u:***@127.0.0.1:1 amqp://")
    assert "secret" not in window.content()
    fill(window, Destination_exchange="amq.fanout")
    window.get_by_role("button", name="Set").click()
    expect(window.locator("tr", has_text="amq.fanout")).to_be_visible()
    assert http.get("/api/parameters/shovel/%2F/s")["value"] == {
        **value, "dest-exchange": "amq.fanout", "ack-mode": "on-confirm"}


def test_an_upstream_is_made_changed_and_deleted(site, http):
    window = site.open("federation")
    expect(window.get_by_text("No federation links.")).to_be_visible()
    window.get_by_role("button", name="New upstream").click()
    fill(window, Name="old", URI=AWAY)
    window.get_by_role("button", name="Set").click()
    row = window.locator("tr", has_text="old")
    expect(row).to_contain_text("amqp://u:***@127.0.0.1:1")
    row.get_by_role("button", name="Edit").click()
    fill(window, Queue="other")
    window.get_by_role("button", name="Set").click()
    expect(window.get_by_role("dialog")).to_have_count(0)
    assert http.get("/api/parameters/federation-upstream/%2F/old")["value"] == {
        "uri": AWAY, "queue": "other", "ack-mode": "on-confirm"}
    row.get_by_role("button", name="Delete").click()
    window.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(window.get_by_text("No upstreams.")).to_be_visible()


def answer(window, path, **row):
    """Let the pages have this one row of a list, in place of what the broker says."""
    figures = {"vhost": "/", "state": "running", "reason": "", "next_try": 0, "last_message": 0, "messages": 12345,
               "rate": 2.5, "unconfirmed": 3, "reconnects": 4, "lag": 5}  # fmt: skip
    page = {"items": [{**figures, **row}], "total_count": 1, "filtered_count": 1, "page": 1, "page_count": 1}
    window.route(f"**{path}?**", lambda route: route.fulfill(
        status=200, content_type="application/json", body=json.dumps(page)))


def test_a_link_that_does_not_run_says_why_and_when_it_tries_again(site):
    window = site.open("overview")
    now = time.time() * 1000
    answer(window, "/api/federation-links", id="12345678", type="queue", resource="orders", upstream="old",
           uri="amqp://there", state="starting", reason="connection refused", next_try=now + 3_600_000,
           last_message=now - 90_500)
    window.goto(site.address("federation"))
    row = window.locator("tr", has_text="orders")
    expect(row.locator(".tag")).to_have_text("starting")
    expect(row).to_contain_text("connection refused")
    expect(row).to_contain_text("tries again in 5")
    for text in ("12,345 2.5/s", "5 3 unconfirmed", "4 reconnects"):
        expect(row.get_by_role("cell", name=text)).to_be_visible()
    assert row.get_by_role("link", name="orders").get_attribute("href") == "#/queues/%2F/orders"


def test_a_shovel_whose_destination_takes_nothing_is_blocked(site):
    window = site.open("overview")
    answer(window, "/api/shovels", name="s", blocked_status="blocked", reason="low on memory",
           value={"src-uri": "amqp://", "src-exchange": "", "src-exchange-key": "k", "dest-uri": "amqp://there"})
    window.goto(site.address("shovels"))
    row = window.locator("tr", has_text="low on memory")
    expect(row.locator(".tag")).to_have_text("blocked")
    expect(row).to_contain_text("exchange (default) with k")
    expect(row).to_contain_text("where each message says")


def test_who_may_not_change_a_shovel_is_offered_nothing(site, http):
    assert http.ask("PUT", "/api/users/mary", {"password": "mary", "tags": "management"}).status == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert http.ask("PUT", "/api/permissions/%2F/mary", everything).status == 201
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": AWAY}
    assert http.ask("PUT", "/api/parameters/shovel/%2F/s", {"value": value}).status == 201
    window = site.open("shovels", "mary")
    expect(window.locator("tr", has_text="127.0.0.1")).to_be_visible()
    for name in ("New shovel", "Pause", "Edit", "Delete"):
        expect(window.get_by_role("button", name=name)).to_have_count(0)
    http.ask("DELETE", "/api/users/mary")

"""The pages as people use them: look, find, follow; light and dark, by keyboard, on a phone."""

import re

import pytest
from playwright.sync_api import expect
from tests.web.conftest import AXE, MS, find_barriers, log_in

expect.set_options(timeout=MS)
PAGES = ("overview", "queues", "queues/%2F/orders", "streams", "streams/%2F/log", "exchanges",
         "exchanges/%2F/amq.topic", "connections", "channels", "policies",
         "shovels", "federation", "users", "vhosts", "changes", "log", "audits", "traces", "definitions")


@pytest.fixture(scope="module", autouse=True)
def goods(shared):
    """Queues and messages for the pages to show."""
    channel = shared.client()
    channel.queue_declare("orders", durable=True, arguments={"x-order-journal": True})
    channel.queue_bind("orders", "amq.topic", "order.#")
    for number in range(120):
        channel.queue_declare(f"region-{number:03}", durable=True)
    for number in range(3):
        channel.basic_publish("amq.topic", "order.new", b"message %d" % number)
    channel.basic_publish("", "region-077", b"the only one")
    channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    channel.basic_publish("", "log", b"an entry")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("log", lambda *_: None, arguments={"x-stream-offset": "first"})
    channel.connection.process_data_events(0)
    yield
    channel.connection.close()


def test_a_wrong_password_is_told_and_the_right_one_opens_the_page_that_was_asked_for(site):
    window = site.window()
    window.goto(site.address("queues"))
    window.get_by_label("User").fill("guest")
    window.get_by_label("Password").fill("wrong")
    window.get_by_role("button", name="Log in").click()
    expect(window.get_by_role("alert")).to_have_text("Login failed")
    log_in(window, "guest", "guest")
    expect(window.get_by_role("heading", name="Queues")).to_be_visible()
    window.get_by_role("button", name="Log out").click()
    expect(window.get_by_role("button", name="Log in")).to_be_visible()
    window.reload()
    expect(window.get_by_role("button", name="Log in")).to_be_visible()


def walk(site, window):
    """Go through all pages in one window; yields the name of each when it is drawn."""
    for page in PAGES:
        window.goto(site.address(page))
        window.locator("main h1").first.wait_for()
        window.locator(".chart" if page == "overview" else "main .scroll, main .card").first.wait_for()
        yield page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(site, scheme):
    if not AXE.exists():
        pytest.skip("axe is not there: make test installs it where npm is")
    window = site.open(color_scheme=scheme)
    assert window.locator("html").get_attribute("data-theme") == scheme
    assert {page: found for page in walk(site, window) if (found := find_barriers(window))} == {}


def test_axe_finds_no_barrier_at_the_login(site):
    window = site.window()
    window.goto(site.address())
    window.get_by_label("User").wait_for()
    assert not AXE.exists() or find_barriers(window) == []


def test_no_page_is_wider_than_a_phone_and_the_menu_leads_on(site):
    window = site.open(width=360, height=740)
    width = "document.documentElement.scrollWidth"
    assert {page: wide for page in walk(site, window) if (wide := window.evaluate(width)) > 360} == {}
    window.get_by_role("button", name="Menu").click()
    window.get_by_role("link", name="Exchanges", exact=True).click()
    expect(window.get_by_role("heading", name="Exchanges")).to_be_visible()


def test_numbers_and_charts_move_without_a_reload(site):
    window = site.open()
    ready = window.locator(".number", has_text="Messages ready").locator("b")
    # Not what the page or the overview shows: their first sample may be older than the messages of the fixture.
    queues = window.evaluate("fetch('/api/queues').then(all => all.json())")
    before = sum(queue["messages_ready"] for queue in queues)
    chart = window.locator(".chart", has_text="Messages in queues").get_by_role("img")
    channel = site.client()
    for _ in range(7):
        channel.basic_publish("", "region-005", b"one more")
    expect(ready).to_have_text(str(before + 7))
    expect(chart).to_have_attribute("aria-label", re.compile(f"ready {before + 7},"))
    channel.queue_purge("region-005")
    channel.connection.close()


def test_the_broker_filters_sorts_and_cuts_pages_of_queues(site):
    window = site.open("queues")
    rows = window.locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(window.locator(".pager")).to_contain_text("122 queues")
    window.get_by_role("button", name="Next").click()
    expect(window.locator(".pager")).to_contain_text("Page 2 of 3")
    expect(rows.first).to_contain_text("region-048")
    window.get_by_label("Filter queues").fill("07$")
    expect(window.get_by_text("No queues match.")).to_be_visible()
    window.get_by_label("regular expression").check()
    expect(rows).to_have_count(2)  # region-007, region-107
    window.get_by_label("Filter queues").fill("")
    ready = window.get_by_role("button", name="Ready")
    ready.click()
    ready.click()
    expect(rows.first).to_contain_text("orders")
    expect(rows.nth(1)).to_contain_text("log")
    expect(rows.nth(2)).to_contain_text("region-077")


def test_a_pattern_that_is_none_is_told_in_words(site):
    window = site.open("queues")
    window.get_by_label("regular expression").check()
    window.get_by_label("Filter queues").fill("(")
    expect(window.get_by_role("alert")).to_contain_text("regular expression")


def test_a_queue_shows_its_guarantee_its_consumers_and_what_each_holds(site):
    channel = site.client()
    channel.basic_qos(prefetch_count=2)
    channel.queue_declare("held", durable=True)
    for _ in range(3):
        channel.basic_publish("", "held", b"held")
    channel.basic_consume("held", lambda *_: None, consumer_tag="clerk")
    channel.connection.process_data_events(0)
    window = site.open("queues/%2F/held")
    order = window.locator(".card", has=window.get_by_role("heading", name="Order", exact=True))
    expect(order.locator(".guarantee")).to_have_text("best-effort")
    expect(order).to_contain_text("prefetch 2: 1 message may overtake a returned one")
    clerk = window.locator("tr", has_text="clerk")
    expect(clerk.locator("td").nth(1)).to_have_text("2")
    channel.connection.close()
    expect(order.locator(".guarantee")).to_have_text("strict-fifo")
    expect(window.get_by_text("No client consumes.")).to_be_visible()


def test_a_trace_tells_the_life_of_a_message(site):
    channel = site.client()
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(method.delivery_tag)
    window = site.open("queues/%2F/orders")
    card = window.locator("#trace")
    card.get_by_label("Number").fill("1")
    card.get_by_role("button", name="Trace").click()
    expect(card.locator("li").first).to_contain_text("enqueued")
    expect(card.locator(".timeline")).to_contain_text("delivered")
    expect(card.locator(".timeline")).to_contain_text("acked")
    channel.connection.close()


def test_an_exchange_shows_where_its_messages_go(site):
    window = site.open("exchanges/%2F/amq.topic")
    window.locator("tr", has_text="order.#").get_by_role("link", name="orders").click()
    expect(window.get_by_role("heading", name="orders")).to_be_visible()


def test_a_queue_that_is_not_there_is_told(site):
    window = site.open("queues/%2F/nowhere")
    expect(window.get_by_text("There is no such queue")).to_be_visible()


def test_the_keyboard_leads_everywhere(site):
    window = site.open()
    window.locator(".chart").first.wait_for()
    window.keyboard.press("g")
    window.keyboard.press("q")
    expect(window.get_by_label("Filter queues")).to_be_visible()    # The overview has a heading with queues in it, too.
    window.keyboard.press("/")
    window.keyboard.type("region-077")
    expect(window.locator("tbody tr")).to_have_count(1)
    window.keyboard.press("Tab")
    window.keyboard.press("?")
    expect(window.get_by_role("dialog", name="Keys")).to_be_visible()
    window.keyboard.press("Escape")
    expect(window.get_by_role("dialog", name="Keys")).to_have_count(0)
    theme = window.locator("html").get_attribute("data-theme")
    window.keyboard.press("t")
    assert window.locator("html").get_attribute("data-theme") != theme
    window.reload()
    window.get_by_role("heading", name="Queues").wait_for()
    assert window.locator("html").get_attribute("data-theme") != theme

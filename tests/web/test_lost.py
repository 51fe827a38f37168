"""The broker goes away while somebody looks, and comes back."""

import pytest
from playwright.sync_api import expect
from tests.web.conftest import MS, log_in

expect.set_options(timeout=MS)


@pytest.mark.parametrize("page", ["overview", "queues"])
def test_a_page_tells_that_the_broker_is_lost_and_goes_on_when_it_is_found(own_site, page):
    window = own_site.open(page)
    shown = window.locator(".number b, .pager").first
    shown.wait_for()
    end = len(own_site.broker.log_text())
    own_site.broker.kill()
    lost = window.get_by_text("The broker does not answer.")
    expect(lost).to_be_visible()
    expect(shown).to_be_visible()  # What was seen stays.
    own_site.broker.start()
    own_site.wait(end)
    expect(lost).to_have_count(0)
    log_in(window, "guest", "guest")  # A broker that starts anew knows no former session.
    channel = own_site.client()
    channel.queue_declare("after the loss")
    if page == "overview":
        expect(window.locator(".number", has_text="Queues").locator("b")).to_have_text("1")
    else:
        expect(window.locator("tbody tr")).to_contain_text("after the loss")
    channel.connection.close()

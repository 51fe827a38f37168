"""The login by an OpenID provider, in the browser."""

import pytest
from tests.auth.tokens import Issuer
from tests.management.openid import Provider
from tests.web.conftest import Site, find_barriers


@pytest.fixture
def provider(tmp_path):
    provider = Provider(Issuer(tmp_path / "keys"))
    provider.asks = True
    yield provider
    provider.close()


@pytest.fixture
def site_with_provider(tmp_path, chromium, provider):
    site = Site(tmp_path / "data", chromium, *provider.flags())
    yield site
    site.end()
    assert not site.faults


def test_a_user_comes_in_by_the_provider_and_out_again(site_with_provider, provider):
    window = site_with_provider.window()
    window.goto(site_with_provider.address("queues"))
    button = window.get_by_role("link", name="Log in with the OpenID provider")
    button.wait_for()
    assert find_barriers(window) == []
    button.click()
    window.get_by_role("link", name="Let me in").click()
    window.locator(".side").wait_for()
    assert window.locator(".who").inner_text().startswith("olga\nadministrator")
    window.reload()
    window.locator(".side").wait_for()
    window.get_by_role("button", name="Log out").click()
    button.wait_for()


def test_a_login_that_fails_says_why(site_with_provider, provider):
    provider.scopes = ["read:*/*"]
    window = site_with_provider.window()
    window.goto(site_with_provider.address())
    window.get_by_role("link", name="Log in with the OpenID provider").click()
    window.get_by_role("link", name="Let me in").click()
    window.get_by_text("a scope with the tag management is missing").wait_for()

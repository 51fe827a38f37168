"""The web pages as files: what the browser may keep, what it may run, and a broker that has none."""

import gzip

import pytest

from brokerd.management import pages
from brokerd.management.routes import Routes

built = pytest.mark.skipif(not pages.read_files(pages.FOLDER), reason="the pages are not built: make pages")


@built
def test_the_front_page_is_asked_for_anew_and_its_script_is_kept(http):
    front = http.ask("GET", "/", authorization="")
    assert front.status == 200
    assert front.headers["cache-control"] == "no-cache"
    assert front.headers["content-type"] == "text/html; charset=utf-8"
    script = next(name for name in pages.read_files(pages.FOLDER) if name.endswith(".js"))
    assert f'src="{script}"'.encode() in front.body
    kept = http.ask("GET", f"/{script}", authorization="")
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert http.ask("GET", f"/{script}", if_none_match=kept.headers["etag"]).status == 304


@built
def test_only_scripts_of_the_broker_itself_run(http):
    policy = http.ask("GET", "/", authorization="").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert b"<script>" not in http.ask("GET", "/", authorization="").body


@built
def test_a_browser_that_unpacks_gets_them_packed(http):
    name, file = next((name, file) for name, file in pages.read_files(pages.FOLDER).items() if name.endswith(".js"))
    answer = http.ask("GET", f"/{name}", accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == file.octets
    assert len(answer.body) < len(file.octets) / 2


def test_a_refusal_to_a_page_does_not_make_the_browser_ask_for_a_password(http):
    refused = http.ask("GET", "/api/v2/session", authorization="", x_requested_with="brokerd")
    assert (refused.status, refused.headers.get("www-authenticate")) == (401, None)
    assert http.ask("GET", "/api/v2/session", authorization="").headers["www-authenticate"].startswith("Basic")


def test_a_broker_that_was_built_without_pages_says_how_it_gets_some(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "FOLDER", str(tmp_path / "nowhere"))
    routes = pages.routes()
    assert [path for _, path, _ in routes] == ["/"]
    assert Routes(routes).find("/") is not None
    assert "apt-get install npm" in pages.NOT_BUILT


def test_other_files_beside_the_pages_are_not_served(tmp_path):
    (tmp_path / "index.html").write_text("page")
    (tmp_path / "secret.toml").write_text("secret")
    assert list(pages.read_files(str(tmp_path))) == ["index.html"]

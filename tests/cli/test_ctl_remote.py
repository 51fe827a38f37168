"""brokerctl asks a broker over HTTP, in a user's name."""

import json

import pytest
from click.testing import CliRunner
from tests.broker import Broker
from tests.management.http import Http, reserve_http

from brokerd.cli.brokerctl import cli
from brokerd.errors import BrokerError


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    port = reserve_http()
    folder = tmp_path_factory.mktemp("remote") / "data"
    with Broker(folder, "--http-port", port, "--failed-logins-per-second", 0) as broker:
        broker.wait_for_log(r"\(HTTP\)")
        broker.http, broker.url = Http(port), f"http://127.0.0.1:{port}"
        broker.http.do("user", "add", user="ann", password="secret", tags=["management"])
        broker.http.do("permission", "set", user="ann", configure="^mine", write="", read="")
        yield broker


@pytest.fixture
def run(broker, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*words, password="guest", refused=None, url=True):
        monkeypatch.setenv("BROKERCTL_PASSWORD", password)
        given = ["--url", broker.url, *words] if url else list(words)
        done = CliRunner().invoke(cli, given, catch_exceptions=True)
        if refused is not None:
            assert isinstance(done.exception, BrokerError), done.output
            assert refused in str(done.exception)
        else:
            assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    return run


def test_an_operation_is_done_in_the_users_name(broker, run):
    run("--user", "ann", "declare_queue", "mine", password="secret")
    assert "mine" in run("list_queues")
    run("--user", "ann", "declare_queue", "other", password="secret", refused="refused for user 'ann'")
    run("--user", "ann", "list_users", password="secret", refused="administrator")
    changes = json.loads(run("list_changes", "--user", "ann", "--json"))["items"]
    assert {(each["operation"], each["face"]) for each in changes} == {("queue declare", "HTTP")}


def test_a_wrong_password_is_told_in_one_line(broker, run):
    run("--user", "ann", "status", password="wrong", refused="the password of user 'ann' is wrong")


def test_a_job_is_waited_for(run):
    assert "brokerd" in run("status")
    assert json.loads(run("status", "--json"))["totals"]["queues"] >= 0


def test_a_name_stands_for_a_broker(broker, run, tmp_path):
    folder = tmp_path / ".config" / "brokerd"
    folder.mkdir(parents=True)
    (folder / "brokers.toml").write_text(f'[shop]\nurl = "{broker.url}"\nuser = "ann"\n[odd]\nurl = "x"\nport = 1\n')
    found = json.loads(run("--broker", "shop", "list_vhosts", "--json", password="secret", url=False))
    assert found["total_count"] == 1
    run("--broker", "none", "status", refused="it names shop, odd", url=False)
    run("--broker", "odd", "status", refused="port: there are url, user", url=False)
    run("--broker", "shop", "status", refused="not both")


@pytest.mark.parametrize(("url", "text"), [
    ("http://mq.example:15672", "use https"), ("ftp://x", "is no address"), ("https://u:p@x", "names no user"),
    ("x", "is no address"), ("https://x:port", "Port could not be cast"),
])
def test_an_address_that_is_none_or_gives_the_password_away_is_refused(run, url, text):
    run("--url", url, "status", refused=text, url=False)


def test_a_path_that_is_relative_means_nothing_elsewhere(run):
    run("import_definitions", "here.json", refused="on the broker's machine")


def test_what_is_no_broker_is_told(run):
    port = reserve_http()
    run("--url", f"http://127.0.0.1:{port}", "status", refused=f"http://127.0.0.1:{port}: ", url=False)

"""Addresses: what is refused, in RabbitMQ's words, and that no password is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.links.definition import SHOVEL, UPSTREAM
from brokerd.links.uris import (
    MASK,
    fault,
    local_vhost,
    masked,
    masked_term,
    masked_value,
    with_kept_passwords,
    without_credentials,
)

FINE = ("amqp://", "amqp:///", "amqp:///v", "amqp://h", "amqp://h:1/%2F", "amqp://u:p@h:5672/v?heartbeat=5",
        "amqps://h?verify=verify_none&cacertfile=/a/b", "amqp://[::1]:5672", "amqp://h?unknown=x")
WRONG = {   # the reason as RabbitMQ 3.10 words it; without a word of RabbitMQ's where that shows its own stack
    "nonsense": "{unable_to_parse_uri,no_scheme}", "": "{unable_to_parse_uri,no_scheme}",
    "http://x": '{unexpected_uri_scheme,"http"}', "amqp://u:p@h/a/b": '{invalid_vhost,"a/b"}',
    "amqp://h?heartbeat=x": '{invalid_amqp_params_parameter,heartbeat,"x",{not_an_integer,"x"}}',
    "amqp://h?verify=no": '{invalid_amqp_params_parameter,verify,"no",{not_one_of,[verify_none,verify_peer]}}',
    **dict.fromkeys(("amqp://h:port", "amqp://[::1"), "{unable_to_parse_uri,invalid_host_or_port}"),
    "amqp://h:0": "{port_out_of_range,0}", "amqp://u:p@h:70000/v": "{port_out_of_range,70000}",
    **dict.fromkeys(("amqp://h/a b", "amqp://h/%zz"), "{unable_to_parse_uri,invalid_character}"),
    "amqps:///v": "{unable_to_parse_uri,no_host}", "amqp://u:p@/v": "{unable_to_parse_uri,no_host}",
}  # fmt: skip


@pytest.mark.parametrize("uri", FINE)
def test_an_address_may_be(uri):
    assert fault(uri) is None


@pytest.mark.parametrize("uri", WRONG)
def test_what_is_no_address_is_told_as_rabbitmq_tells_it(uri):
    shown = f'"{masked(uri)}"' if uri else "[]"
    assert fault(uri) == f'"{masked(uri)}" not a valid URI: {{{WRONG[uri]},{shown}}}'


def test_a_web_address_is_one_only_where_it_may_be():
    assert fault("https://u:p@h/a/b?c=d", ("amqp", "https")) is None
    assert "no_host" in fault("https:///a", ("amqp", "https"))


SECRET = "s3cr:t/x@y?z"


@pytest.mark.parametrize(("uri", "shown", "bare"), [
    ("amqp://u:s3cr@h:1/v", "amqp://u:***@h:1/v", "amqp://h:1/v"), ("amqp://u@h/v", "amqp://u@h/v", "amqp://h/v"),
    ("amqp://h/v", "amqp://h/v", "amqp://h/v"), ("amqp://:s3cr@h", "amqp://:***@h", "amqp://h"),
    ("amqp://u:s3@cr@h/v@w", "amqp://u:***@h/v@w", "amqp://h/v@w"),
    ("amqp://u:s3/cr@h", "amqp://u:***@h", "amqp://h"),  # No address, but a password all the same.
    ("amqps://h?password=s3cr&verify=x", "amqps://h?password=***&verify=x", "amqps://h?password=***&verify=x"),
    ("nonsense", "nonsense", "nonsense"), ("u:s3cr@h", "u:***@h", "h"), ("amqp//u:s3@cr@h", "amqp//u:***@h", "h"),
    ("amqp://u:s3cr@a,amqp://v:s3cr@b", "amqp://u:***@b", "amqp://b"),
    ("https://u:s3cr@h/a?to=https://x@y", "https://u:***@h/a?to=https://x@y", "https://h/a?to=https://x@y"),
])  # fmt: skip
def test_a_password_is_masked_and_credentials_go(uri, shown, bare):
    assert masked(uri) == shown
    assert without_credentials(uri) == bare


@given(st.text(st.characters(codec="ascii", exclude_characters="@/?#"), min_size=1))
def test_no_password_is_seen_in_any_form(password):
    uri = f"amqp://user:{password}@host/v"
    assert masked(uri) == f"amqp://user:{MASK}@host/v"
    assert without_credentials(uri) == "amqp://host/v"
    assert f":{password}@" not in str(fault(f"{uri}/w")) or password == MASK


@pytest.mark.parametrize("uri", ["amqp://u:12/s3cr/x@h", "amqp://u:12/s3cr x@h", "u:s3cr@h", "amqp//u:s3cr@h",
                                 "amqp://u:p@a amqp://v:s3cr@b", "amqp:u:s3cr@h/v"])  # fmt: skip
def test_a_refused_address_does_not_show_its_password(uri):
    assert "s3cr" not in fault(uri)


def test_a_refused_value_is_shown_without_what_may_be_a_password():
    assert masked_term([{"url": "amqp://u:s3cr@h", "password": ["s3cr"], "Pass_word": 5}, "u:s3cr@h", 7, None]) == [
        {"url": "amqp://u:***@h", "password": ["***"], "Pass_word": 5}, "u:***@h", 7, None]
    assert masked_term({"amqp://u:s3cr@h": {"a": "b"}}) == {"amqp://u:***@h": {"a": "b"}}


def test_the_addresses_of_a_value_are_masked_wherever_a_component_has_them():
    value = {"src-uri": "amqp://u:p@a", "dest-uri": ["amqp://u:p@b", 5], "src-queue": "x:y@z"}
    assert masked_value(SHOVEL, value) == {
        "src-uri": "amqp://u:***@a", "dest-uri": ["amqp://u:***@b", 5], "src-queue": "x:y@z"}
    assert masked_value(UPSTREAM, {"uri": "amqp://u:p@a"}) == {"uri": "amqp://u:***@a"}
    assert value["src-uri"] == "amqp://u:p@a"
    for other in ({"uri": "amqp://u:p@a"}, 5, [], None):
        assert masked_value("mine", other) == other
    assert masked_value(SHOVEL, 5) == 5


def test_what_comes_back_masked_keeps_its_password_and_only_at_its_own_address():
    before = {"src-uri": ["amqp://u:one@a", "amqp://u:two@b"], "dest-uri": "amqps://h?password=three"}
    sent = masked_value(SHOVEL, before)
    assert with_kept_passwords(SHOVEL, sent, before) == before
    assert with_kept_passwords(SHOVEL, {"src-uri": "amqp://u:***@b"}, before) == {"src-uri": "amqp://u:two@b"}
    elsewhere = {"src-uri": "amqp://u:***@evil", "dest-uri": "amqp://u:new@h"}
    assert with_kept_passwords(SHOVEL, elsewhere, before) == elsewhere
    for none in (None, 5, {}, {"src-uri": 5}):
        assert with_kept_passwords(SHOVEL, sent, none) == sent


@pytest.mark.parametrize(("uri", "vhost"), [
    ("amqp://", "own"), ("amqp:///", "own"), ("amqp:///a", "a"), ("amqp:///%2F", "/"), ("amqp://h/a", None),
])
def test_an_address_without_a_host_means_a_vhost_here(uri, vhost):
    assert local_vhost(uri, "own") == vhost

"""Scopes of tokens: what they allow, by RabbitMQ's rules."""

import pytest

from brokerd.auth.scopes import Scopes, matches


@pytest.mark.parametrize(("pattern", "text", "fits"), [
    ("a", "a", True), ("a", "ab", False), ("*", "", True), ("*", "a.b", True), ("a*", "a", True), ("a*", "ba", False),
    ("*a", "ba", True), ("a*a", "a", False), ("a*a", "aa", True), ("a*b*c", "a1b2c", True), ("a*b*c", "a1c2b", False),
    ("a*bc*c", "abc", False), ("", "", True), ("", "a", False), ("**", "a", True), ("a.b", "axb", False),
])
def test_a_star_stands_for_any_text_and_nothing_else_is_special(pattern, text, fits):
    assert matches(tuple(pattern.split("*")), text) is fits


def test_many_stars_take_no_exponential_time():
    assert not matches(tuple(("a*" * 200 + "b").split("*")), "a" * 5000)


def test_a_permission_holds_in_its_vhost_for_its_names_alone():
    scopes = Scopes(["read:%2F/orders*", "write:prod/*", "configure:*/mine"])
    assert scopes.check("/", "read", "orders.eu")
    assert not scopes.check("/", "read", "other")
    assert not scopes.check("/", "write", "orders.eu")
    assert scopes.check("prod", "write", "anything")
    assert scopes.check("any", "configure", "mine")
    assert not Scopes(["read:prod/x"]).has_access("/")
    assert Scopes(["read:prod/x"]).has_access("prod")


def test_a_slash_in_a_name_is_written_as_in_urls():
    scopes = Scopes(["read:a%2Fb/c%2Fd", "read:x/y%2A"])
    assert scopes.check("a/b", "read", "c/d")
    assert scopes.check("x", "read", "y*")
    assert not scopes.check("x", "read", "yz")


def test_a_third_part_bounds_routing_keys():
    scopes = Scopes(["write:%2F/events/eu.*", "read:%2F/events"])
    assert scopes.check_topic("/", "write", "events", "eu.paris")
    assert not scopes.check_topic("/", "write", "events", "us.boston")
    assert scopes.check_topic("/", "read", "events", "us.boston")
    assert scopes.check("/", "write", "events")


@pytest.mark.parametrize("word", ["", "read", "read:", "read:a", "read:a/b/c/d", "tag:", "tag:a\nb", "drop:a/b"])
def test_what_is_no_scope_allows_nothing(word):
    scopes = Scopes([word])
    assert not scopes.tags
    assert not scopes.has_access("a")


def test_tags_come_once_each():
    assert Scopes(["tag:monitoring", "tag:administrator", "tag:monitoring"]).tags == ("monitoring", "administrator")

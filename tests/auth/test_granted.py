"""What logins over HTTP are granted, by their keys."""

import pytest

from brokerd.auth import granted
from brokerd.auth.granted import GrantedLogins
from brokerd.auth.scopes import Scopes


@pytest.fixture
def time():
    return [100.0]


@pytest.fixture
def logins(time):
    return GrantedLogins(lambda: time[0])


def test_a_login_is_found_by_its_key_until_its_time_is_over(logins, time):
    scopes = Scopes(["tag:management"])
    key = logins.keep("ann", scopes, 200.0, "token", "a")
    assert logins.find(key) == ("ann", scopes, 200.0)
    time[0] = 199.9
    assert logins.find(key) is not None
    time[0] = 200.0
    assert logins.find(key) is None


def test_only_the_same_proof_of_the_same_user_with_the_same_tags_has_the_same_key(logins):
    keys = [logins.keep(user, Scopes([f"tag:{tag}"]), 200.0, *proof)
            for user in ("ann", "bob") for tag in ("a", "b") for proof in (("x",), ("y",), ("x", "y"))]
    assert len(set(keys)) == 12
    assert logins.keep("ann", Scopes(["tag:a"]), 300.0, "x") == keys[0]
    assert logins.find(keys[0]).until == 300.0


def test_a_key_of_another_broker_or_none_finds_nothing(logins, time):
    key = GrantedLogins(lambda: time[0]).keep("ann", Scopes([]), 200.0, "x")
    assert logins.keep("ann", Scopes([]), 200.0, "x") != key
    assert logins.find(key) is None
    assert logins.find("") is None


def test_the_oldest_are_forgotten(logins, monkeypatch):
    monkeypatch.setattr(granted, "GRANTED_MAX", 3)
    keys = [logins.keep("ann", Scopes([]), 200.0, str(number)) for number in range(4)]
    assert [logins.find(key) is not None for key in keys] == [False, True, True, True]

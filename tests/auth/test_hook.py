"""The hook of a package: what it is asked, what its answers mean, and the example of the documentation."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from brokerd.auth import hook
from brokerd.auth.hook import Wish, load
from brokerd.auth.http_backend import HTTPBackend, HTTPGranted, Question
from brokerd.errors import ConfigError, LoginRefused, NotAnsweredYet
from brokerd.settings import HTTPAuth


class Directory:
    def __init__(self, text):
        self.wishes, self.tags, self.allowed = [], ["own", "two"], True

    def log_in(self, user, password):
        if isinstance(self.tags, Exception):
            raise self.tags
        return self.tags if (user, password) == ("ann", "pä") else None

    def allows(self, wish):
        self.wishes.append(wish)
        return self.allowed


class EntryPoints(dict):
    names = property(lambda self: set(self))


@pytest.fixture
def installed(monkeypatch):
    """Lets ``load`` find these entry points."""
    def install(**found):
        points = EntryPoints({name: SimpleNamespace(load=lambda made=made: made) for name, made in found.items()})
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == hook.GROUP else {})

    return install


@pytest.fixture
def directory(installed):
    made = []
    installed(acme=lambda text: made.append(Directory(text)) or made[-1])
    ask = load("acme", "")
    made[0].backend = HTTPBackend(lambda: HTTPAuth("get", {}, 1, 15, 1000, ""), lambda: 0.0, ask)
    return made[0]


def test_the_tags_are_those_that_the_hook_returns(directory):
    assert directory.backend.fetch_login("ann", "pä".encode()) == ("own", "two")
    directory.tags = ()
    assert directory.backend.fetch_login("ann", "pä".encode()) == ()
    with pytest.raises(LoginRefused, match="user 'ann' - denied by the hook"):
        directory.backend.fetch_login("ann", b"other")


def test_an_empty_password_is_refused_and_the_hook_not_asked(directory):
    directory.tags = RuntimeError("asked")
    with pytest.raises(LoginRefused, match="an empty password"):
        directory.backend.fetch_login("ann", b"")


@pytest.mark.parametrize(("tags", "text"), [
    ("management", "log_in returned one text"), ([5], "a tag is no text"), ([""], "a tag is no text"),
    (["a b"], "a tag is no text, or has a blank"), (7, "TypeError"),
    (RuntimeError("away\nnow"), "RuntimeError: away now"),
])
def test_an_answer_of_the_wrong_type_lets_nobody_in(directory, tags, text):
    directory.tags = tags
    with pytest.raises(ValueError, match=text):
        directory.backend.fetch_login("ann", "pä".encode())


def test_each_wish_says_what_and_where(directory):
    granted = HTTPGranted(directory.backend, "ann", ("own", "two"), "10.0.0.7")
    for call in (lambda: granted.has_access("v"), lambda: granted.check("v", "read", "a b", "queue"),
                 lambda: granted.check("v", "configure", "e", "exchange"),
                 lambda: granted.check_topic("v", "write", "news", "eu.#")):
        with pytest.raises(NotAnsweredYet) as missing:
            call()
        assert directory.backend.fetch(missing.value.question)
    tags = ("own", "two")
    assert directory.wishes == [
        Wish("ann", tags, "v", "vhost", address="10.0.0.7"), Wish("ann", tags, "v", "queue", "a b", "read"),
        Wish("ann", tags, "v", "exchange", "e", "configure"), Wish("ann", tags, "v", "topic", "news", "write", "eu.#")]


@pytest.mark.parametrize(("allowed", "found"), [(True, True), (False, False), (None, None), (1, None), ("deny", None)])
def test_only_true_and_false_are_answers(directory, allowed, found):
    directory.allowed = allowed
    question = Question("vhost", (("username", "ann"), ("vhost", "v"), ("ip", ""), ("tags", "")))
    if found is None:
        with pytest.raises(ValueError, match="allows returned"):
            directory.backend.fetch(question)
    else:
        assert directory.backend.fetch(question) is found


def test_a_hook_that_cannot_be_made_is_named(installed):
    def broken(text):
        raise OSError(f"no\n{text}")

    installed(broken=broken, wrong=lambda text: text)
    for name, text in (("absent", r"no installed package has it \(brokerd.auth has: broken, wrong\)"),
                       ("broken", "OSError: no config$"), ("wrong", "str has no methods log_in and allows")):
        with pytest.raises(ConfigError, match=f"auth_hook {name}: {text}"):
            load(name, "config")


def test_the_example_of_the_documentation_logs_in_by_a_bind_with_escaped_names(monkeypatch):
    bound = []

    class Connection:
        entries = [SimpleNamespace(cn="management"), SimpleNamespace(cn="app-v")]

        def __init__(self, url, who, password, **_):
            bound.append((url, who))
            if password != "secret":
                raise exceptions.LDAPBindError

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def search(self, base, sought, attributes):
            bound.append((base, sought))

    exceptions = SimpleNamespace(LDAPBindError=type("LDAPBindError", (Exception,), {}))
    modules = {name: ModuleType(name) for name in ("ldap3", "ldap3.utils", "ldap3.utils.dn", "ldap3.utils.conv")}
    modules["ldap3"].Connection, modules["ldap3"].core = Connection, SimpleNamespace(exceptions=exceptions)
    modules["ldap3.utils.dn"].escape_rdn = lambda text: text.replace(",", "\\,")
    modules["ldap3.utils.conv"].escape_filter_chars = lambda text: text.replace("(", "\\28")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    docs = (Path(__file__).parents[2] / "docs/running.md").read_text()
    names = {}
    exec(re.search(r"```python\n(from brokerd.auth.hook import.*?)```", docs, re.DOTALL)[1], names)
    made = names["connect"]("ldaps://d")
    assert made.log_in("a,b(", "secret") == ["management", "app-v"]
    assert bound == [("ldaps://d", "uid=a\\,b(,ou=people,dc=example,dc=org"),
                     ("ou=groups,dc=example,dc=org", "(member=uid=a\\,b\\28,ou=people,dc=example,dc=org)")]
    assert made.log_in("ann", "wrong") is None
    assert made.allows(Wish("ann", ("app-v",), "v", "queue", "q", "read"))
    assert not made.allows(Wish("ann", ("app-v",), "w", "vhost"))
    assert not made.allows(Wish("ann", ("app-v",), "v", "queue", "q", "configure"))

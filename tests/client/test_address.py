import pytest

from brokerd.client.address import Address, AddressError, shown


def test_an_address_has_login_host_port_vhost_and_what_its_query_says():
    address = Address.parse("amqp://me:p%40ss@host:5673/a%2Fb?heartbeat=7&connection_timeout=2500")
    assert (address.user, address.password, address.host, address.port) == ("me", "p@ss", "host", 5673)
    assert (address.vhost, address.heartbeat, address.timeout, address.tls) == ("a/b", 7, 2.5, False)
    assert "p@ss" not in repr(address)


def test_an_address_without_host_is_the_brokers_own_and_one_without_vhost_has_the_one_given():
    assert Address.parse("amqp://", "mine").is_local
    assert Address.parse("amqp://", "mine").vhost == "mine"
    assert Address.parse("amqp:///other", "mine").vhost == "other"
    assert not Address.parse("amqps://h").is_local
    assert Address.parse("amqps://h").port == 5671


@pytest.mark.parametrize("uri", ["http://h", "amqp://h:port", "amqp://u:secret@h:99999", "amqp://u:secret@h?heartbeat=x",
                                 "amqp://u:secret@h?auth_mechanism=magic"])
def test_what_is_no_address_is_refused_without_its_password(uri):
    with pytest.raises(AddressError) as caught:
        Address.parse(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("uri", "seen"), [
    ("amqp://me:secret@h:1/v?password=secret", "amqp://me@h:1/v"),
    ("amqp://h/v", "amqp://h/v"),
    ("amqp://me:sec@ret@h", "amqp://me@h"),
    ("amqp://", "amqp://"),
    ("me:secret@h", "h"),
])
def test_people_see_no_password(uri, seen):
    assert shown(uri) == seen

from brokerd.links.definition import ShovelDefinition, UpstreamDefinition


def test_a_shovel_has_the_peers_defaults():
    value = {"src-uri": "amqp://a", "dest-uri": ["amqp://b", "amqp://c"], "src-queue": "q"}
    shovel = ShovelDefinition.from_value(value)
    assert shovel.src_uri == ("amqp://a",)
    assert shovel.dest_uri == ("amqp://b", "amqp://c")
    assert (shovel.src_prefetch_count, shovel.ack_mode, shovel.src_delete_after) == (1000, "on-confirm", "never")
    assert shovel.reconnect_delay == 5
    assert not shovel.is_http
    assert shovel.dest_exchange_key is None


def test_of_two_names_of_a_key_the_longer_wins_and_the_shorter_counts_alone():
    base = {"src-uri": "amqp://a", "dest-uri": "http://b/"}
    assert ShovelDefinition.from_value({**base, "prefetch-count": 7}).src_prefetch_count == 7
    assert ShovelDefinition.from_value({**base, "prefetch-count": 7, "src-prefetch-count": 8}).src_prefetch_count == 8
    assert ShovelDefinition.from_value({**base, "add-forward-headers": True}).dest_add_forward_headers
    assert ShovelDefinition.from_value(base).is_http


def test_an_entry_of_a_set_overrides_its_upstream():
    upstream = UpstreamDefinition.from_value({"uri": "amqp://a", "max-hops": 2, "expires": 1000})
    changed = upstream.overridden({"upstream": "u", "uri": ["amqp://b"], "exchange": "e", "max-hops": 3})
    assert changed.uri == ("amqp://b",)
    assert changed.exchange == "e"
    assert changed.max_hops == 3
    assert changed.expires == 1000
    assert upstream.max_hops == 2

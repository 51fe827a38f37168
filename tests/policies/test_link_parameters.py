"""The values of parameters that make links: what each may be, in RabbitMQ's words (3.10, asked over HTTP)."""

import pytest

from brokerd.links.definition import ShovelDefinition, UpstreamDefinition
from brokerd.policies.link_parameters import faults

SHOVEL = {"src-uri": "amqp://h", "src-queue": "a", "dest-uri": "amqp:///", "dest-queue": "b"}
UPSTREAM = {"uri": "amqp://h"}


def found(component, value, may_enter=lambda vhost: vhost == "/"):
    return faults(component, "s", value, vhost="/", user="ann", may_enter=may_enter)


def changed(value, changes):
    return {name: each for name, each in {**value, **changes}.items() if each is not ...}


ACK_MODES = '[<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>]'
OF_SHOVELS = [
    ({"src-uri": ...}, 'Key "src-uri" not found in s'),
    ({"dest-uri": ...}, 'Key "dest-uri" not found in s'),
    ({"src-queue": ...}, "Must specify 'src-exchange' or 'src-queue'"),
    ({"src-exchange": "x"}, "Cannot specify 'src-exchange' and 'src-queue'"),
    ({"dest-exchange": "x"}, "Cannot specify 'dest-exchange' and 'dest-queue'"),
    ({"zzz": 1, "yyy": "a"}, 'Unrecognised terms [{<<"yyy">>,<<"a">>},{<<"zzz">>,1}] in s'),
    ({"src-prefetch-count": "x"}, 'src-prefetch-count should be a number, actually was <<"x">>'),
    ({"src-prefetch-count": True}, "src-prefetch-count should be a number, actually was true"),
    ({"prefetch-count": 70000}, "prefetch-count should be a number less than or equal to 65535, actually was 70000"),
    ({"src-queue": 5}, "src-queue should be binary, actually was 5"),
    ({"src-queue": ""}, 'src-queue should be the name of a queue, actually was <<"">>'),
    ({"dest-queue": ""}, 'dest-queue should be the name of a queue, actually was <<"">>'),
    ({"dest-queue": "x" * 300}, "dest-queue should be less than 255 bytes, actually was 300"),
    ({"ack-mode": "x"}, f'ack-mode should be one of {ACK_MODES}, actually was <<"x">>'),
    ({"ack-mode": 5}, "ack-mode should be binary, actually was 5"),
    ({"reconnect-delay": "x"}, 'reconnect-delay should be a number, actually was <<"x">>'),
    ({"reconnect-delay": -1}, "reconnect-delay should be a number greater than or equal to 0, actually was -1"),
    ({"src-delete-after": "x"}, 'src-delete-after should be a number greater than or equal to 0, "never" or '
                                '"queue-length", actually was <<"x">>'),
    ({"reconnect-delay": 1e308},
     "reconnect-delay should be a number less than or equal to 4294967296, actually was 1e+308"),
    ({"src-delete-after": 1 << 33},
     "src-delete-after should be a number less than or equal to 4294967296, actually was 8589934592"),
    ({"src-delete-after": 5, "ack-mode": "no-ack"}, "Cannot specify 'no-ack' and numerical 'delete-after'"),
    ({"dest-add-forward-headers": "x"}, 'dest-add-forward-headers should be boolean, actually was <<"x">>'),
    ({"src-uri": 5}, "src-uri should be list, actually was 5"),
    ({"src-uri": [5]}, "src-uri should be list, actually was 5"),
    ({"src-uri": []}, "src-uri should be a list of at least one URI, actually was []"),
    ({"src-uri": ["amqp://", "http://u:p@x"]},
     '"http://u:***@x" not a valid URI: {{unexpected_uri_scheme,"http"},"http://u:***@x"}'),
    ({"dest-uri": ["amqp://", "http://x"]}, "Cannot specify URIs of brokers and of web servers in one 'dest-uri'"),
    ({"dest-publish-properties": {"zz": 1}}, 'Unrecognised terms [{<<"zz">>,1}] in dest-publish-properties'),
    ({"dest-publish-properties": {"priority": "a"}}, 'priority should be a number, actually was <<"a">>'),
    ({"dest-publish-properties": 5}, "dest-publish-properties not a list 5"),
    ({"dest-queue-args": 5}, "dest-queue-args not a list 5"),
    ({"src-consumer-args": {"x": [1 << 63]}}, 'src-consumer-args has a value that AMQP cannot carry: <<"x">>'),
    ({"src-protocol": "amqp10"},
     'src-protocol should be one of [<<"amqp091">>,<<"local">>], actually was <<"amqp10">>'),
    ({"src-uri": "amqp:///novhost"}, 'user "ann" may not connect to vhost "novhost"'),
    ({"src-uri": "amqp://u:***@h"}, '"amqp://u:***@h" has *** in place of its password, and is not an address that was '
                                    "there before: give the password"),
    ({"dedup": 1}, "dedup should be boolean, actually was 1"),
]  # fmt: skip
OF_UPSTREAMS = [
    ({"uri": ...}, 'Key "uri" not found in s'),
    ({"uri": None}, "uri should be list, actually was null"),
    ({"uri": "https://h"}, '"https://h" not a valid URI: {{unexpected_uri_scheme,"https"},"https://h"}'),
    ({"zz": 1}, 'Unrecognised terms [{<<"zz">>,1}] in s'),
    ({"max-hops": "x"}, 'max-hops should be a number, actually was <<"x">>'),
    ({"max-hops": 0}, "max-hops should be a number greater than or equal to 1, actually was 0"),
    ({"resource-cleanup-mode": "x"},
     'resource-cleanup-mode should be one of [<<"default">>,<<"never">>], actually was <<"x">>'),
    ({"channel-use-mode": "z"},
     'channel-use-mode should be one of [<<"multiple">>,<<"single">>], actually was <<"z">>'),
    ({"trust-user-id": 1}, "trust-user-id should be boolean, actually was 1"),
    ({"exchange": 1}, "exchange should be binary, actually was 1"),
    ({"consumer-tag": 1}, "consumer-tag should be binary, actually was 1"),
    ({"ha-policy": 1}, "ha-policy should be binary, actually was 1"),
    ({"uri": "amqp:///other"}, 'user "ann" may not connect to vhost "other"'),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "fault"), OF_SHOVELS)
def test_a_shovel_is_refused_in_rabbitmqs_words(changes, fault):
    assert found("shovel", changed(SHOVEL, changes)) == [fault]


@pytest.mark.parametrize(("changes", "fault"), OF_UPSTREAMS)
def test_an_upstream_is_refused_in_rabbitmqs_words(changes, fault):
    assert found("federation-upstream", changed(UPSTREAM, changes)) == [fault]


@pytest.mark.parametrize(("value", "fault"), [
    ([{}], 'Key "upstream" not found in s'), ([{"upstream": 5}], "upstream should be binary, actually was 5"),
    ([{"upstream": "u"}, {"upstream": "u", "uri": "amqp://"}], 'Unrecognised terms [{<<"uri">>,<<"amqp://">>}] in s'),
    ([{"upstream": "u", "max-hops": "x"}], 'max-hops should be a number, actually was <<"x">>'),
    ([5], "s not a list 5"), (5, "s not a list 5"), ({"a": 1}, 's not a list #{<<"a">> => 1}'),
    ([[]], 'Key "upstream" not found in s'),
])
def test_a_set_of_upstreams_is_refused_in_rabbitmqs_words(value, fault):
    assert found("federation-upstream-set", value) == [fault]


LOGIN = "amqp://u:s3cr@h"
AT_A_WRONG_PLACE = [
    *[("shovel", {**SHOVEL, key: value}) for key in ("src-uri", "dest-uri", "ack-mode", "prefetch-count", "src-url")
      for value in ({"uri": LOGIN}, [[LOGIN]], [LOGIN, 5], {LOGIN: 1})],
    *[("shovel", {**SHOVEL, key: value}) for key in ("src-queue-args", "publish-properties")
      for value in (LOGIN, [LOGIN])],
    ("shovel", {**SHOVEL, "publish-properties": {LOGIN: LOGIN}}),
    ("shovel", LOGIN), ("shovel", [LOGIN]), ("shovel", {**SHOVEL, "password": "s3cr"}),
    ("shovel", {**SHOVEL, "src-delete-after": LOGIN}), ("shovel", {**SHOVEL, "dest-predeclared": LOGIN}),
    ("federation-upstream", LOGIN), ("federation-upstream", {"uri": {"a": LOGIN}}),
    ("federation-upstream", {"url": LOGIN}), ("federation-upstream", {"uri": "u:s3cr@h"}),
    ("federation-upstream-set", LOGIN), ("federation-upstream-set", [LOGIN]),
    ("federation-upstream-set", [{"upstream": "x", "uri": LOGIN}]),
]  # fmt: skip


@pytest.mark.parametrize(("component", "value"), AT_A_WRONG_PLACE)
def test_a_refusal_shows_no_password_wherever_the_address_stands(component, value):
    faults_found = found(component, value)
    assert faults_found
    assert "s3cr" not in "".join(faults_found)


def test_everything_that_is_wrong_is_told():
    assert found("shovel", {"a": 1}) == [
        "Must specify 'src-exchange' or 'src-queue'", 'Unrecognised terms [{<<"a">>,1}] in s',
        'Key "dest-uri" not found in s', 'Key "src-uri" not found in s',
    ]  # fmt: skip


def test_a_list_is_a_table_without_keys_as_php_writes_an_empty_one():
    assert found("shovel", [5]) == [
        "Must specify 'src-exchange' or 'src-queue'", "Unrecognised terms [5] in s", 'Key "dest-uri" not found in s',
        'Key "src-uri" not found in s']
    assert found("federation-upstream", []) == ['Key "uri" not found in s']
    assert found("federation-upstream-set", {}) == []
    tables = {key: [] for key in ("src-queue-args", "dest-queue-args", "src-consumer-args", "publish-properties")}
    assert found("shovel", {**SHOVEL, **tables}) == []


@pytest.mark.parametrize("value", [5, "a", None, True])
@pytest.mark.parametrize("component", ["shovel", "federation-upstream"])
def test_a_value_of_another_type_is_refused(component, value):
    assert found(component, value)[0].startswith("s not a list ")


def test_a_full_value_is_taken_and_read():
    shovel = {
        **SHOVEL, "src-uri": ["amqp://u:p@h/v?heartbeat=10", "amqps://g"], "ack-mode": "on-publish",
        "reconnect-delay": 0.5, "src-queue-args": {"x-queue-type": "quorum"}, "src-consumer-args": {"x-priority": 1},
        "src-predeclared": True, "src-prefetch-count": 0, "src-delete-after": "queue-length", "dest-predeclared": True,
        "dest-queue-args": {"x-a": [1, {"b": None}]}, "add-forward-headers": True, "dest-add-timestamp-header": True,
        "dest-publish-properties": {"delivery_mode": 2, "content_type": "a", "timestamp": 1}, "dest-retries": -1,
        "dedup": True, "src-protocol": "local",
    }  # fmt: skip
    assert found("shovel", shovel) == []
    assert ShovelDefinition.from_value(shovel).src_prefetch_count == 0
    assert found("shovel", {**SHOVEL, "dest-uri": ["http://a", "https://u:p@b/c/d?e"]}) == []
    upstream = {
        **UPSTREAM, "queue": "q", "prefetch-count": 1, "reconnect-delay": 5, "max-hops": 2, "expires": 3600000,
        "message-ttl": 0, "trust-user-id": True, "ack-mode": "no-ack", "resource-cleanup-mode": "never",
        "queue-type": "quorum", "bind-nowait": True, "channel-use-mode": "single", "ha-policy": "all",
        "consumer-tag": "t",
    }  # fmt: skip
    assert found("federation-upstream", upstream) == []
    assert UpstreamDefinition.from_value(upstream).max_hops == 2
    assert found("federation-upstream-set", [{"upstream": "u", "max-hops": 2}, {"upstream": "none"}]) == []
    assert found("federation-upstream-set", []) == []


def test_every_key_of_a_definition_is_known_here():
    for kind, value, component in ((ShovelDefinition, SHOVEL, "shovel"), (UpstreamDefinition, UPSTREAM,
                                                                          "federation-upstream")):
        for attribute in kind.__dataclass_fields__:
            key = attribute.replace("_", "-")
            faults_ = found(component, {**value, key: object})
            assert not any(each.startswith("Unrecognised") for each in faults_), key


def test_values_of_other_components_may_be_anything():
    for value in (5, {}, None, {"src-uri": 5}):
        assert found("mine", value) == []

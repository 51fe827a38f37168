"""What of the configuration reaches node and sessions."""

from brokerd.config import OPTIONS, Config
from brokerd.server.values import limits_of, settings_of
from brokerd.settings import HTTPAuth, Limits, OAuth2, Settings


def test_every_value_is_that_of_the_option_of_its_name():
    changed = {name: not value if isinstance(value, bool) else value * 2 + 1 if isinstance(value, int) else f"{value}x"
               for name in Settings._fields + Limits._fields if name in OPTIONS for value in [getattr(Config(), name)]}
    config = Config(**changed)
    handed_down = settings_of(config)._asdict() | limits_of(config)._asdict()
    del handed_down["anonymous"], handed_down["oauth2"], handed_down["http_auth"]
    assert handed_down == changed | {"auth_backends": (changed["auth_backends"],)}


def test_what_is_said_of_the_web_server_is_handed_down():
    config = Config(auth_backends="internal,http", auth_http_method="post", auth_http_user_path="u",
                    auth_http_vhost_path="v", auth_http_resource_path="r", auth_http_topic_path="t",
                    auth_http_timeout_seconds=1, auth_http_cache_seconds=2, auth_http_cache_entries=3,
                    auth_http_ca_cert="ca.pem")  # fmt: skip
    assert settings_of(config).auth_backends == ("internal", "http")
    paths = {"user": "u", "vhost": "v", "resource": "r", "topic": "t"}
    assert settings_of(config).http_auth == HTTPAuth("post", paths, 1, 2, 3, "ca.pem")


def test_what_is_said_of_tokens_is_handed_down_with_its_lists_cut():
    config = Config(oauth2_jwks="k.json", oauth2_resource_server_id="mq", oauth2_issuer="i", oauth2_ca_cert="ca.pem",
                    oauth2_preferred_username_claims="a, b", oauth2_additional_scopes_keys="c d",
                    oauth2_verify_aud=False)  # fmt: skip
    assert settings_of(config).oauth2 == OAuth2("k.json", "mq", "i", ("a", "b"), "mq.", ("c", "d"), False, "ca.pem")
    assert settings_of(Config(oauth2_scope_prefix="own:")).oauth2.scope_prefix == "own:"


def test_clients_are_offered_no_name_where_anonymous_ones_become_somebody():
    assert limits_of(Config(anonymous_login_user="nobody")).anonymous
    assert not limits_of(Config(anonymous_login_user="")).anonymous

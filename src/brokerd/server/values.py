"""The values of the configuration for the floors below the server: the node's settings, the sessions' limits."""

from typing import TYPE_CHECKING

from brokerd.settings import HTTPAuth, Limits, OAuth2, Settings

if TYPE_CHECKING:
    from brokerd.config import Config


def limits_of(config: "Config") -> Limits:
    """The values that sessions need."""
    return Limits(
        handshake_timeout_seconds=config.handshake_timeout_seconds,
        heartbeat_seconds=config.heartbeat_seconds,
        frame_max_octets=config.frame_max_octets,
        channel_max=config.channel_max,
        consumers_per_channel_max=config.consumers_per_channel_max,
        anonymous=bool(config.anonymous_login_user),
        tcp_nodelay=config.tcp_nodelay,
    )


def settings_of(config: "Config") -> Settings:
    """The values that the node needs."""
    return Settings(
        sync=config.sync,
        segment_octets=config.segment_octets,
        message_octets_max=config.message_octets_max,
        deliver_octets_per_turn=config.deliver_octets_per_turn,
        free_disk_min_octets=config.free_disk_min_octets,
        memory_high_watermark_octets=config.memory_high_watermark_octets,
        memory_high_watermark_percent=config.memory_high_watermark_percent,
        connection_max=config.connection_max,
        idle_queue_seconds=config.idle_queue_seconds,
        order_journal_archive=config.order_journal_archive,
        order_journal_chain_log=config.order_journal_chain_log,
        log_exchange=config.log_exchange,
        default_user=config.default_user,
        default_user_only_loopback=config.default_user_only_loopback,
        failed_logins_per_second=config.failed_logins_per_second,
        oauth2=oauth2_of(config),
        auth_backends=_words(config.auth_backends),
        http_auth=http_auth_of(config),
        anonymous_login_user=config.anonymous_login_user,
    )


def oauth2_of(config: "Config") -> OAuth2:
    """The values that the check of tokens needs.  Lists are words between commas or blanks."""
    name = config.oauth2_resource_server_id
    return OAuth2(
        jwks=config.oauth2_jwks,
        resource_server_id=name,
        issuer=config.oauth2_issuer,
        preferred_username_claims=_words(config.oauth2_preferred_username_claims),
        scope_prefix=config.oauth2_scope_prefix or (f"{name}." if name else ""),
        additional_scopes_keys=_words(config.oauth2_additional_scopes_keys),
        verify_aud=config.oauth2_verify_aud,
        ca_cert=config.oauth2_ca_cert,
    )


def http_auth_of(config: "Config") -> HTTPAuth:
    """The values that the back-end of HTTP needs."""
    return HTTPAuth(
        method=config.auth_http_method,
        paths={
            "user": config.auth_http_user_path, "vhost": config.auth_http_vhost_path,
            "resource": config.auth_http_resource_path, "topic": config.auth_http_topic_path,
        },
        timeout_seconds=config.auth_http_timeout_seconds,
        cache_seconds=config.auth_http_cache_seconds,
        cache_entries=config.auth_http_cache_entries,
        ca_cert=config.auth_http_ca_cert,
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())

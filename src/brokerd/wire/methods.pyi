"""The classes that methods.py makes of its table.  Written by tests/wire/stub_of_methods.py."""

# ruff: noqa: A002

from typing import Any, ClassVar, Self

BY_INDEX: dict[int, type[Method]]
BY_NAME: dict[str, type[Method]]

METHOD_OCTETS_MAX: int
VALUES_MAX: int

def decode(payload: bytes) -> Method: ...
def decode_bounded(payload: bytes) -> Method: ...
def check_octets(payload: bytes) -> None: ...

class Method:
    NAME: ClassVar[str]
    INDEX: ClassVar[int]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]
    REPLIES: ClassVar[tuple[str, ...]]
    CONTENT: ClassVar[bool]
    def __init__(self) -> None: ...
    def encode(self) -> bytes: ...
    @classmethod
    def decode_fields(cls, payload: bytes) -> Self: ...
    def frame(self, channel: int) -> bytes: ...

class ConnectionStart(Method):
    version_major: int
    version_minor: int
    server_properties: dict[str, Any]
    mechanisms: bytes
    locales: bytes
    def __init__(
        self,
        *,
        version_major: int = ...,
        version_minor: int = ...,
        server_properties: dict[str, Any] | None = ...,
        mechanisms: bytes | str = ...,
        locales: bytes | str = ...,
    ) -> None: ...

class ConnectionStartOk(Method):
    client_properties: dict[str, Any]
    mechanism: str
    response: bytes
    locale: str
    def __init__(
        self,
        *,
        client_properties: dict[str, Any] | None = ...,
        mechanism: str = ...,
        response: bytes | str = ...,
        locale: str = ...,
    ) -> None: ...

class ConnectionSecure(Method):
    challenge: bytes
    def __init__(
        self,
        *,
        challenge: bytes | str = ...,
    ) -> None: ...

class ConnectionSecureOk(Method):
    response: bytes
    def __init__(
        self,
        *,
        response: bytes | str = ...,
    ) -> None: ...

class ConnectionTune(Method):
    channel_max: int
    frame_max: int
    heartbeat: int
    def __init__(
        self,
        *,
        channel_max: int = ...,
        frame_max: int = ...,
        heartbeat: int = ...,
    ) -> None: ...

class ConnectionTuneOk(Method):
    channel_max: int
    frame_max: int
    heartbeat: int
    def __init__(
        self,
        *,
        channel_max: int = ...,
        frame_max: int = ...,
        heartbeat: int = ...,
    ) -> None: ...

class ConnectionOpen(Method):
    virtual_host: str
    reserved_1: str
    reserved_2: bool
    def __init__(
        self,
        *,
        virtual_host: str = ...,
        reserved_1: str = ...,
        reserved_2: bool = ...,
    ) -> None: ...

class ConnectionOpenOk(Method):
    reserved_1: str
    def __init__(
        self,
        *,
        reserved_1: str = ...,
    ) -> None: ...

class ConnectionClose(Method):
    reply_code: int
    reply_text: str
    class_id: int
    method_id: int
    def __init__(
        self,
        *,
        reply_code: int = ...,
        reply_text: str = ...,
        class_id: int = ...,
        method_id: int = ...,
    ) -> None: ...

class ConnectionCloseOk(Method): ...

class ConnectionBlocked(Method):
    reason: str
    def __init__(
        self,
        *,
        reason: str = ...,
    ) -> None: ...

class ConnectionUnblocked(Method): ...

class ConnectionUpdateSecret(Method):
    new_secret: bytes
    reason: str
    def __init__(
        self,
        *,
        new_secret: bytes | str = ...,
        reason: str = ...,
    ) -> None: ...

class ConnectionUpdateSecretOk(Method): ...

class ChannelOpen(Method):
    reserved_1: str
    def __init__(
        self,
        *,
        reserved_1: str = ...,
    ) -> None: ...

class ChannelOpenOk(Method):
    reserved_1: bytes
    def __init__(
        self,
        *,
        reserved_1: bytes | str = ...,
    ) -> None: ...

class ChannelFlow(Method):
    active: bool
    def __init__(
        self,
        *,
        active: bool = ...,
    ) -> None: ...

class ChannelFlowOk(Method):
    active: bool
    def __init__(
        self,
        *,
        active: bool = ...,
    ) -> None: ...

class ChannelClose(Method):
    reply_code: int
    reply_text: str
    class_id: int
    method_id: int
    def __init__(
        self,
        *,
        reply_code: int = ...,
        reply_text: str = ...,
        class_id: int = ...,
        method_id: int = ...,
    ) -> None: ...

class ChannelCloseOk(Method): ...

class AccessRequest(Method):
    realm: str
    exclusive: bool
    passive: bool
    active: bool
    write: bool
    read: bool
    def __init__(
        self,
        *,
        realm: str = ...,
        exclusive: bool = ...,
        passive: bool = ...,
        active: bool = ...,
        write: bool = ...,
        read: bool = ...,
    ) -> None: ...

class AccessRequestOk(Method):
    reserved_1: int
    def __init__(
        self,
        *,
        reserved_1: int = ...,
    ) -> None: ...

class ExchangeDeclare(Method):
    reserved_1: int
    exchange: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        exchange: str = ...,
        type: str = ...,
        passive: bool = ...,
        durable: bool = ...,
        auto_delete: bool = ...,
        internal: bool = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class ExchangeDeclareOk(Method): ...

class ExchangeDelete(Method):
    reserved_1: int
    exchange: str
    if_unused: bool
    no_wait: bool
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        exchange: str = ...,
        if_unused: bool = ...,
        no_wait: bool = ...,
    ) -> None: ...

class ExchangeDeleteOk(Method): ...

class ExchangeBind(Method):
    reserved_1: int
    destination: str
    source: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        destination: str = ...,
        source: str = ...,
        routing_key: str = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class ExchangeBindOk(Method): ...

class ExchangeUnbind(Method):
    reserved_1: int
    destination: str
    source: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        destination: str = ...,
        source: str = ...,
        routing_key: str = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class ExchangeUnbindOk(Method): ...

class QueueDeclare(Method):
    reserved_1: int
    queue: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        passive: bool = ...,
        durable: bool = ...,
        exclusive: bool = ...,
        auto_delete: bool = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class QueueDeclareOk(Method):
    queue: str
    message_count: int
    consumer_count: int
    def __init__(
        self,
        *,
        queue: str = ...,
        message_count: int = ...,
        consumer_count: int = ...,
    ) -> None: ...

class QueueBind(Method):
    reserved_1: int
    queue: str
    exchange: str
    routing_key: str
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        exchange: str = ...,
        routing_key: str = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class QueueBindOk(Method): ...

class QueuePurge(Method):
    reserved_1: int
    queue: str
    no_wait: bool
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        no_wait: bool = ...,
    ) -> None: ...

class QueuePurgeOk(Method):
    message_count: int
    def __init__(
        self,
        *,
        message_count: int = ...,
    ) -> None: ...

class QueueDelete(Method):
    reserved_1: int
    queue: str
    if_unused: bool
    if_empty: bool
    no_wait: bool
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        if_unused: bool = ...,
        if_empty: bool = ...,
        no_wait: bool = ...,
    ) -> None: ...

class QueueDeleteOk(Method):
    message_count: int
    def __init__(
        self,
        *,
        message_count: int = ...,
    ) -> None: ...

class QueueUnbind(Method):
    reserved_1: int
    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        exchange: str = ...,
        routing_key: str = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class QueueUnbindOk(Method): ...

class BasicQos(Method):
    prefetch_size: int
    prefetch_count: int
    global_: bool
    def __init__(
        self,
        *,
        prefetch_size: int = ...,
        prefetch_count: int = ...,
        global_: bool = ...,
    ) -> None: ...

class BasicQosOk(Method): ...

class BasicConsume(Method):
    reserved_1: int
    queue: str
    consumer_tag: str
    no_local: bool
    no_ack: bool
    exclusive: bool
    no_wait: bool
    arguments: dict[str, Any]
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        consumer_tag: str = ...,
        no_local: bool = ...,
        no_ack: bool = ...,
        exclusive: bool = ...,
        no_wait: bool = ...,
        arguments: dict[str, Any] | None = ...,
    ) -> None: ...

class BasicConsumeOk(Method):
    consumer_tag: str
    def __init__(
        self,
        *,
        consumer_tag: str = ...,
    ) -> None: ...

class BasicCancel(Method):
    consumer_tag: str
    no_wait: bool
    def __init__(
        self,
        *,
        consumer_tag: str = ...,
        no_wait: bool = ...,
    ) -> None: ...

class BasicCancelOk(Method):
    consumer_tag: str
    def __init__(
        self,
        *,
        consumer_tag: str = ...,
    ) -> None: ...

class BasicPublish(Method):
    reserved_1: int
    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        exchange: str = ...,
        routing_key: str = ...,
        mandatory: bool = ...,
        immediate: bool = ...,
    ) -> None: ...

class BasicReturn(Method):
    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str
    def __init__(
        self,
        *,
        reply_code: int = ...,
        reply_text: str = ...,
        exchange: str = ...,
        routing_key: str = ...,
    ) -> None: ...

class BasicDeliver(Method):
    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    def __init__(
        self,
        *,
        consumer_tag: str = ...,
        delivery_tag: int = ...,
        redelivered: bool = ...,
        exchange: str = ...,
        routing_key: str = ...,
    ) -> None: ...

class BasicGet(Method):
    reserved_1: int
    queue: str
    no_ack: bool
    def __init__(
        self,
        *,
        reserved_1: int = ...,
        queue: str = ...,
        no_ack: bool = ...,
    ) -> None: ...

class BasicGetOk(Method):
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: int
    def __init__(
        self,
        *,
        delivery_tag: int = ...,
        redelivered: bool = ...,
        exchange: str = ...,
        routing_key: str = ...,
        message_count: int = ...,
    ) -> None: ...

class BasicGetEmpty(Method):
    reserved_1: str
    def __init__(
        self,
        *,
        reserved_1: str = ...,
    ) -> None: ...

class BasicAck(Method):
    delivery_tag: int
    multiple: bool
    def __init__(
        self,
        *,
        delivery_tag: int = ...,
        multiple: bool = ...,
    ) -> None: ...

class BasicReject(Method):
    delivery_tag: int
    requeue: bool
    def __init__(
        self,
        *,
        delivery_tag: int = ...,
        requeue: bool = ...,
    ) -> None: ...

class BasicRecoverAsync(Method):
    requeue: bool
    def __init__(
        self,
        *,
        requeue: bool = ...,
    ) -> None: ...

class BasicRecover(Method):
    requeue: bool
    def __init__(
        self,
        *,
        requeue: bool = ...,
    ) -> None: ...

class BasicRecoverOk(Method): ...

class BasicNack(Method):
    delivery_tag: int
    multiple: bool
    requeue: bool
    def __init__(
        self,
        *,
        delivery_tag: int = ...,
        multiple: bool = ...,
        requeue: bool = ...,
    ) -> None: ...

class ConfirmSelect(Method):
    no_wait: bool
    def __init__(
        self,
        *,
        no_wait: bool = ...,
    ) -> None: ...

class ConfirmSelectOk(Method): ...
class TxSelect(Method): ...
class TxSelectOk(Method): ...
class TxCommit(Method): ...
class TxCommitOk(Method): ...
class TxRollback(Method): ...
class TxRollbackOk(Method): ...

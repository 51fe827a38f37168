"""brokerd: an AMQP 0-9-1 broker whose message order you can rely on, see, and prove."""

__version__ = "0.1.0"

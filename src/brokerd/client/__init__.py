"""A small AMQP 0-9-1 client, with which links speak to brokers."""

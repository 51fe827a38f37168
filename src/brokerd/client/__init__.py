"""A small AMQP 0-9-1 client: what the links of this package speak to brokers with."""

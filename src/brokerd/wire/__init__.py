"""Octets to AMQP 0-9-1 values and back, in plain Python: values, methods, frames, properties.

Knows the grammar only: no sockets, no channel states, no broker.
"""

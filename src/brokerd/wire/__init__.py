"""Octets to AMQP 0-9-1 values and back, in plain Python: values, methods, frames, properties.

Knows only the grammar: no sockets, no states of channels, no broker.
"""

"""Periodic work of a running broker: once a second, a bounded share of it, for all vhosts."""

"""The process of links: it carries messages from one broker to another, in order, and loses none.

``main`` runs the links that the broker tells it of; ``link`` is what all have in common, ``shovel`` and ``federation``
are the kinds, ``carriage`` is a relay at work between two connections.
"""

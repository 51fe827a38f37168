"""Links: shovels and federation, as types that the broker, its operations and the process of links share.

``definition`` has the links that parameters and policies define, ``state`` the states of those that run, ``book`` the
broker's list of both.  ``carriers`` runs the links, in a process that the broker starts (``server/links``).
"""

"""Links: shovels and federation, as types that the broker, its operations and the process of links share.

``definition`` is what parameters and policies say a link is, ``state`` what is known of one that runs, ``book`` the
broker's list of both.  ``carriers`` runs the links, in a process that the broker starts (``server/links``).
"""

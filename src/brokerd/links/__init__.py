"""Links: shovels and federation, which carry messages from one broker to another in order.

``definition`` is what parameters and policies say a link is, ``state`` what is known of one that runs, ``book`` the
broker's list of both.  The process that runs the links is ``main``; the broker starts it (``server/children``).
"""

"""What brokerd does not do yet: conversations that fail, and the feature each waits for.

Whoever lands the feature takes its rows away: a row whose conversation passes fails the suite.
"""

NOT_YET: dict[str, str] = {}

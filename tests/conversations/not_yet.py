"""What brokerd does not do yet: conversations that fail, and the feature each waits for.

Whoever lands the feature takes its rows away: a row whose conversation passes fails the suite.
"""

NOT_YET: dict[str, str] = {
    "test_exchange_types.py::test_events_tell_what_was_made_and_deleted": "event exchange",
    "test_exchange_types.py::test_exchanges_of_the_broker_itself_are_there_and_its_own[amq.rabbitmq.event]": "event exchange",  # noqa: E501
}

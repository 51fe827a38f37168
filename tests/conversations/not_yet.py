"""What brokerd does not do yet: conversations that fail, and the feature each waits for.

Whoever lands the feature takes its rows away: a row whose conversation passes fails the suite.
"""

NOT_YET: dict[str, str] = {
    "test_connection.py::test_what_a_client_still_sends_behind_its_close_is_taken": "reading on after close-ok",
    "test_exchange_types.py::test_events_tell_what_was_made_and_deleted": "event exchange",
    "test_exchange_types.py::test_exchanges_of_the_broker_itself_are_there_and_its_own[amq.rabbitmq.event]": "event exchange",  # noqa: E501
}

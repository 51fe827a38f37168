import pytest

from brokerd.wire import methods


@pytest.fixture
def channel(client):
    return client.connection.channels[1]


def test_a_second_select_goes_on_with_the_same_transaction(client, channel):
    class UnderWay:
        under_way = False

    first = channel.transaction = UnderWay()
    assert client.ask(methods.TxSelect()) == methods.TxSelectOk()
    assert channel.transaction is first


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()])
def test_a_channel_that_has_selected_nothing_has_nothing_to_end(client, method):
    closed = client.ask(method)
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - channel is not transactional")

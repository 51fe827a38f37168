"""The properties of a message, as a client writes them, are found where they stand."""

from tests.planter import properties
from tests.planter.folder import Tree


def metas(sample, name):
    return [record.meta for part in Tree(sample.dump, only={name}).queues[name].parts for record in part.records()]


def test_the_expiration_is_found_beside_other_properties(sample):
    assert {properties.expiration_ms(meta) for meta in metas(sample, "aged")} == {1, 3_000_000}
    assert {properties.expiration_ms(meta) for meta in metas(sample, "plain")} == {None}


def test_another_expiration_changes_nothing_else(sample):
    meta = metas(sample, "aged")[0]
    other = properties.with_expiration(meta, 12)
    assert properties.expiration_ms(other) == 12
    assert properties.with_expiration(other, properties.expiration_ms(meta)) == meta
    assert set(properties.places(other)) == set(properties.places(meta))


def test_a_table_of_headers_is_passed_over(sample):
    for meta in metas(sample, "dead"):
        assert properties.places(meta)["headers"][1] <= len(meta)


def test_properties_that_cannot_be_read_have_no_expiration():
    assert properties.expiration_ms(b"\x00\x05plain\xff\xff\x09") is None

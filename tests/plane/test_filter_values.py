"""Places on the earth in a filter: circles, boxes, polygons.  Other values: test_filter.py, beside a model."""

import pytest
from tests.plane.test_filter import passing


@pytest.mark.parametrize(("kind", "wanted", "inside"), [
    ("geo-within-radius", {"lat": 52.52, "lon": 13.405, "radius_km": 30.0}, [1, 2]),
    ("geo-within-radius", {"lat": 52.52, "lon": 13.405, "radius_km": 600}, [1, 2, 3]),
    ("geo-bbox", {"min_lat": 48, "max_lat": 52.45, "min_lon": 11, "max_lon": 14}, [2, 3]),
    ("geo-polygon", {"points": [[47, 10], [49, 10], [49, 13], [47, 13]]}, [3]),
])
def test_a_place_is_within_a_circle_a_box_or_a_polygon(bench, kind, wanted, inside):
    berlin, potsdam, munich, sydney = (52.52, 13.405), (52.4, 13.06), (48.137, 11.575), (-33.87, 151.21)
    places = [{"x-geo-lat": lat, "x-geo-lon": lon} for lat, lon in (berlin, potsdam, munich, sydney)]
    assert passing(bench, {"x-stream-filter": {kind: wanted}}, [*places, {"x-geo-lat": 50}, {}]) == inside


def test_a_box_may_go_over_the_date_line(bench):
    places = [{"x-geo-lat": -17, "x-geo-lon": lon} for lon in (178.4, -178.4, 180, -180, 170, -170, 169, -169, 0)]
    box = {"geo-bbox": {"min_lat": -20, "max_lat": -10, "min_lon": 170, "max_lon": -170}}
    assert passing(bench, {"x-stream-filter": [{"x-geo-lat": None}, box]}, places) == [1, 2, 3, 4, 5, 6]

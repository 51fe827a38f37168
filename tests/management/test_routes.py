"""Paths find their routes by their raw form, and no two routes stand at one path."""

import pytest

from brokerd.management.routes import Routes
from brokerd.management.table import all_routes

ROUTES = Routes([
    ("GET", "/api/queues", "all"), ("GET", "/api/queues/detailed", "detailed"), ("GET", "/api/queues/{vhost}", "vhost"),
    ("GET", "/api/queues/{vhost}/{queue}", "one"), ("DELETE", "/api/queues/{vhost}/{queue}", "delete"),
    ("GET", "/api/queues/{vhost}/{queue}/bindings", "bindings"),
])


@pytest.mark.parametrize(("path", "target", "values"), [
    ("/api/queues", "all", []),
    ("/api/queues/", "all", []),
    ("/api/queues/detailed", "detailed", []),
    ("/api/queues/%2F", "vhost", ["/"]),
    ("/api/queues/%2f/a%2Fb", "one", ["/", "a/b"]),
    ("/api/queues/detailed/q", "one", ["detailed", "q"]),
    ("/api/queues/%25/bindings/bindings", "bindings", ["%", "bindings"]),
    ("/api/queues/v/%FF", "one", ["v", "\udcff"]),
])
def test_a_path_is_split_before_it_is_decoded(path, target, values):
    methods, found = ROUTES.find(path)
    assert (methods["GET"][1], found) == (target, values)


@pytest.mark.parametrize("path", ["/", "/api", "/api/queues//q", "/api/queues/v/q/x", "/api/Queues"])
def test_other_paths_have_no_route(path):
    assert ROUTES.find(path) is None


def test_a_path_has_one_route_for_each_method():
    with pytest.raises(AssertionError, match="twice"):
        Routes([("GET", "/a/{b}", 1), ("GET", "/a/{c}", 2)])
    assert len(all_routes()) > 80
    Routes(all_routes())

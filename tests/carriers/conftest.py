from tests.server.conftest import left_by_clients

__all__ = ["left_by_clients"]

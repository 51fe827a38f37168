"""Settings that operators give to queues and exchanges by their names."""

from brokerd.policies.policies import Policies, Policy

__all__ = ["Policies", "Policy"]

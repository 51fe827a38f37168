"""Settings that operators give to queues and exchanges by their names."""

from brokerd.policies.policies import Effective, Policies, Policy, PolicyFile

__all__ = ["Effective", "Policies", "Policy", "PolicyFile"]

"""Settings that operators give to queues and exchanges by their names."""

from brokerd.policies.policies import NONE_APPLY, Effective, Policies, Policy, PolicyFile

__all__ = ["NONE_APPLY", "Effective", "Policies", "Policy", "PolicyFile"]

"""The users who may log in, and what each of them may do in which vhost."""

from brokerd.auth.permissions import Permissions
from brokerd.auth.users import User, Users

__all__ = ["Permissions", "User", "Users"]

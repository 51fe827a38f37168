"""Who may log in, and what each may do where."""

from brokerd.auth.permissions import Permissions
from brokerd.auth.users import User, Users

__all__ = ["Permissions", "User", "Users"]

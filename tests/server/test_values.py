"""What of the configuration reaches node and sessions."""

from brokerd.config import OPTIONS, Config
from brokerd.server.values import limits_of, settings_of
from brokerd.settings import Limits, Settings


def test_every_value_is_that_of_the_option_of_its_name():
    changed = {name: not value if isinstance(value, bool) else value * 2 + 1 if isinstance(value, int) else f"{value}x"
               for name in Settings._fields + Limits._fields if name in OPTIONS for value in [getattr(Config(), name)]}
    config = Config(**changed)
    handed_down = settings_of(config)._asdict() | limits_of(config)._asdict()
    del handed_down["anonymous"]
    assert handed_down == changed


def test_clients_are_offered_no_name_where_anonymous_ones_become_somebody():
    assert limits_of(Config(anonymous_login_user="nobody")).anonymous
    assert not limits_of(Config(anonymous_login_user="")).anonymous

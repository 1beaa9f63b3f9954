"""One typed configuration for files and flags: parsed strictly, described in words, written back as TOML."""

from fedspam.app.config.example import EXAMPLE as EXAMPLE
from fedspam.app.config.example import setting_choices as setting_choices
from fedspam.app.config.example import settings_table as settings_table
from fedspam.app.config.parse import ConfigError as ConfigError
from fedspam.app.config.parse import decode as decode
from fedspam.app.config.parse import load as load
from fedspam.app.config.parse import read as read
from fedspam.app.config.schema import Config as Config
from fedspam.app.config.write import differences as differences
from fedspam.app.config.write import tables as tables
from fedspam.app.config.write import to_toml as to_toml

"""One typed configuration for files and flags: read strictly, told in words, written back as TOML."""

from fedspam.app.config.example import EXAMPLE, settings_table
from fedspam.app.config.parse import ConfigError, decode, load, read
from fedspam.app.config.schema import Config
from fedspam.app.config.write import differences, tables, to_toml

__all__ = [
    "EXAMPLE",
    "Config",
    "ConfigError",
    "decode",
    "differences",
    "load",
    "read",
    "settings_table",
    "tables",
    "to_toml",
]

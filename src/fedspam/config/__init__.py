"""One typed configuration for files and flags: read strictly, told in words, written back as TOML."""

from fedspam.config.example import EXAMPLE, settings_table
from fedspam.config.reading import ConfigError, decode, load, read
from fedspam.config.schema import Config
from fedspam.config.writing import differences, tables, to_toml

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

"""One typed configuration for files and flags: parsed strictly, described in words, written back as TOML."""

from fedspam.app.config.parse import (
    ConfigError as ConfigError,
    decode as decode,
    load as load,
    naming as naming,
    read as read,
)
from fedspam.app.config.schema import Config as Config
from fedspam.app.config.text import (
    EXAMPLE as EXAMPLE,
    differences as differences,
    setting_choices as setting_choices,
    settings_table as settings_table,
    tables as tables,
    to_toml as to_toml,
)

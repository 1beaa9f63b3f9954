"""The version of fedspam and of fedspam-client."""

__version__ = "0.1.0"

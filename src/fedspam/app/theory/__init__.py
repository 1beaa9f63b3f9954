"""The work of `fedspam theory` and `fedspam measure`."""

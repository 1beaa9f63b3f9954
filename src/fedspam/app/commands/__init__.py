"""The commands of `fedspam`, a file each: `add` declares its arguments, `run` calls the library, imported only then."""

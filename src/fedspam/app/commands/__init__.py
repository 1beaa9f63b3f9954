"""The commands of `fedspam`, a file each. `add` declares the arguments, `run` calls the library, imported only then."""

"""The modules of fedspam that need no JAX: links to them in a checkout, their text in the wheel."""

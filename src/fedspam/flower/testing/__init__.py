"""For tests: a grid inside one process, and the conformance kit for clients in other languages."""

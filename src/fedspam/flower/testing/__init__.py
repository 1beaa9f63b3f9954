"""The conformance kit, and a grid inside one process."""

"""The Flower app of benchmarks/parity.py: one server, and clients of several kinds that have the same rows and loss."""

"""Flower's quickstart apps for NumPy, PyTorch and scikit-learn, of which Flower's own server knows no other part.

Their functions ``train`` and ``evaluate`` are as in Flower's examples (Apache License 2.0, Flower Labs GmbH); the data
are made here, because the examples download them.
"""

"""Clipping, differential privacy and a secure sum."""

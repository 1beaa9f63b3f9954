"""The theory as code: bounds, similarity measured, complexity."""

"""What every client of a Flower federation does."""

"""The client: a Flower `ClientApp` around an oracle."""

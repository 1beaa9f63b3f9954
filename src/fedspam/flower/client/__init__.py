"""The client: a Flower `ClientApp` around an oracle in JAX or PyTorch, and what a client keeps between messages."""

"""The server: the strategy, its handle on the nodes, its exchanges, and what survives a crash."""

"""The server: the strategy, its handle on the nodes, the exchanges, and the journal that survives a crash."""

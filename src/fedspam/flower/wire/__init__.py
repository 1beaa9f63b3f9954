"""What travels between server and clients: arrays as Flower's records, and the schema that both sides derive."""

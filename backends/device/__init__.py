"""Steps on a device: inputs that stay there, graphs, and what is copied to and fro."""

"""The machine: files, processes, interruption, private parts of JAX."""

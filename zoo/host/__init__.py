"""The machine: files, processes, interruption, graphics cards, private parts of JAX."""

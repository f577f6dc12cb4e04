"""The machine: files, processes, interruption, parts of some work."""

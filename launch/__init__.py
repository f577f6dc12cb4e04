"""The command lines, thin."""

"""What all other rooms stand on: prompts, losses, draws, registries, values, errors."""

"""Within a model: sites, edits, effects, paths, heads, latents, task vectors."""

"""Fields of configs that several headlines share."""

# With these fields a training takes about a minute on two cores.
SHORT = {
  'model.num_layers': 2,
  'train.num_steps': 4000,
  'train.batch_size': 64,
  'optimizer.learning_rate': 1e-3,
  'optimizer.warmup_steps': 200,
  'eval.num_batches': 16,
  'eval.num_compared': 0,
}

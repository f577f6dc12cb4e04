"""Forms of layers of linear attention, and their predictions by their definition."""

import numpy as np

from zoo.core.exact_forms import DeepRule


def form_of(seed: int, num_layers: int = 2, num_features: int = 3) -> DeepRule:
  """Random numbers of the size of those that learn."""
  rng = np.random.default_rng(seed)
  return DeepRule(
    steps=rng.normal(-0.2, 0.1, num_layers),
    # With larger ones of three layers, eigenvalues beyond 20 matter, which a sample of
    # millions does not meet.
    preconditions=rng.normal(-0.1, 0.05, num_layers) / num_layers,
    readout=np.asarray(rng.normal(-0.8, 0.1)),
    feature_readout=rng.normal(0, 0.5, num_features),
    start=rng.normal(0, 0.5, num_features),
    offset=np.asarray(rng.normal()),
    residual=rng.normal(0, 0.5, num_features),
  )


def predict(form, x, y, x_query):
  """The prediction for all prompts, layer by layer as the form is defined."""
  count = x.shape[1]
  y = y - x @ form.residual
  query, label = x_query, x_query @ form.start + form.offset
  for step, b in zip(form.steps, form.preconditions, strict=True):
    gram = np.einsum('pci,pcj->pij', x, x) / count
    moves = np.einsum('pc,pci->pi', y, x) / count
    y, label = (
      y + step * np.einsum('pi,pci->pc', moves, x),
      label + step * np.einsum('pi,pi->p', moves, query),
    )
    x, query = x + b * x @ gram, query + b * np.einsum('pij,pj->pi', gram, query)
  read = form.readout * label + query @ form.feature_readout
  return x_query @ form.residual + read

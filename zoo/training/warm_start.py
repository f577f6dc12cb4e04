"""Weights from which training starts: those of a checkpoint, or random ones."""

from __future__ import annotations

from flax import nnx
from jaxtyping import PyTree

from zoo.config.validation import Config, abstract_model
from zoo.storage.saved_models import check_same_arrays, load, shapes_of


def initial_weights(config: Config) -> PyTree | None:
  """The weights that `train.init_from` names; None if it is None.

  They may be of a model that was trained on another task, or with another optimizer.
  Raises UserError unless they are as many and as large as those of the config's model.
  """
  path = config.train.init_from
  if path is None:
    return None
  weights = nnx.state(load(path).model, nnx.Param)
  wanted = nnx.state(abstract_model(config), nnx.Param)
  check_same_arrays(
    f'config.train.init_from is {path}, whose weights do not fit the model '
    f'{config.model.name!r}',
    shapes_of(weights),
    shapes_of(wanted),
  )
  return nnx.to_pure_dict(weights)


def check_initial_weights(config: Config) -> None:
  """Raises UserError as `initial_weights` does."""
  initial_weights(config)

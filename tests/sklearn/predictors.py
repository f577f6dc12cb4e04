"""Predictors that show what an estimator asks of a model."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import zoo
from zoo.core.distributions import Gaussian


@dataclasses.dataclass(frozen=True, eq=False)
class Sized:
  """Another predictor, which takes so many features and examples alone.

  It has no class of the zoo, so a copy of the context is made for each query.
  """

  predictor: Any
  num_features: int
  context_length: int | None = None
  shapes: list = dataclasses.field(default_factory=list)  # of contexts that it is given

  def __call__(self, prompt):
    _, c, d = prompt.x.shape
    self.shapes.append(prompt.x.shape)
    if d != self.num_features:
      raise zoo.UserError(f'made for {self.num_features} features, and given {d}')
    if self.context_length is not None and c > self.context_length:
      raise zoo.UserError(f'made for {self.context_length} examples, and given {c}')
    return self.predictor(prompt)


class MeanOfLabels:
  """Predicts the mean label of the context, ± the standard deviation of the labels."""

  def __call__(self, prompt):
    return self.distribution(prompt).mean

  def distribution(self, prompt) -> Any:
    return Gaussian(prompt.y.mean(axis=1), prompt.y.std(axis=1))


class OfTables:
  """Numbers and up to 3 classes, of any number of features, some of them missing.

  It predicts the mean of labels that are numbers, and the shares of classes, from the
  rows that have no missing number more than the query.
  """

  num_classes, reads_missing = 3, True

  def __init__(self):
    self.rows = []  # the shapes of `x_queries`
    self.labels = []  # the axes of a label

  def __call__(self, prompt):
    return self.predict_rows(prompt.x, prompt.y, prompt.x_query[:, None])[:, 0]

  def predict_rows(self, x, y, x_queries):
    self.rows.append(x_queries.shape)
    self.labels.append(y.shape[2:])
    of_rows = jnp.isnan(x).astype(int).sum(axis=2)[:, None]
    of_queries = jnp.isnan(x_queries).astype(int).sum(axis=2)[:, :, None]
    weights = (of_rows <= of_queries).astype(y.dtype)
    weights /= weights.sum(axis=2, keepdims=True)
    shares = jnp.einsum('bqc,bc...->bq...', weights, y)
    return shares if y.ndim == 2 else jnp.log(shares)


def prompt_of(x, y, queries) -> zoo.Prompt:
  """A prompt in float32 for each query, all with the context `x [c, d]`, `y`."""
  arrays: list[Any] = [np.repeat(part[None], len(queries), axis=0) for part in (x, y)]
  arrays += [queries, np.zeros((len(queries), *y.shape[1:]))]
  return zoo.Prompt(*(jnp.asarray(part, jnp.float32) for part in arrays))


def least_squares(x, y, queries):
  """Predictions of least squares without an intercept, in NumPy."""
  return queries @ np.linalg.lstsq(x, y, rcond=None)[0]

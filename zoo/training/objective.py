"""What training minimises."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Key

from zoo import draws, theory
from zoo.config import Config
from zoo.learning_rule import LearningRule
from zoo.prompt import Prompt
from zoo.statistics import Statistics

Objective = Callable[[Any, Key[Array, ''], Any], Float[Array, '']]


def setting_of(task: Any) -> theory.Moments | None:
  """What may differ between tasks that share a compiled program; None: nothing may."""
  return theory.task_moments(task) if theory.covers(task) else None


def settings_of(tasks: Sequence[Any]) -> theory.Moments:
  """The settings of tasks that exact theory covers, side by side."""
  settings = [theory.task_moments(task) for task in tasks]
  if any(setting.feature_covariance is not None for setting in settings):
    settings = [
      setting._replace(feature_covariance=np.eye(setting.prior_mean.size))
      if setting.feature_covariance is None
      else setting
      for setting in settings
    ]
  return side_by_side(settings)


def side_by_side(trees: Iterable[Any]) -> Any:
  """Trees of numbers stacked along a new first axis, on the host."""
  return jax.tree.map(lambda *leaves: np.stack(list(map(np.asarray, leaves))), *trees)


def sees_statistics(model: Any, task: Any) -> bool:
  """Whether a model is trained and measured on the statistics of prompts.

  It is where they suffice, and are cheaper than the examples: where the context is
  long, or the model has heads enough.
  """
  if not (theory.covers(task) and hasattr(model, 'learning_rule')):
    return False
  heads = getattr(model, 'num_heads', None)
  if heads is None or task.has_long_context:
    return True
  c, e = task.context_length, task.num_features + 1
  # Their transforms cost e⁴ whatever the batch, which no two devices share, and to take
  # a large triangle apart takes long to compile.
  if e > 256:
    return False
  # Multiplications a prompt, which in statistics are about five times as cheap.
  return e * (e + 1) // 2 * (c + e) <= 5 * heads * e * (2 * c + e)


def draw(task: Any, key: Key[Array, ''], batch_size: int, statistics: bool) -> Any:
  """A batch of prompts, or of statistics, its positions split over the axis `data`."""
  if statistics:
    drawn = task.sample_statistics(key, batch_size)
    positions_last = jax.tree.map(
      lambda leaf: P(*[None] * (leaf.ndim - 1), 'data'), drawn
    )
    return jax.lax.with_sharding_constraint(drawn, positions_last)
  prompt = task.sample(key, batch_size)
  prompt = jax.lax.with_sharding_constraint(prompt, P('data'))
  return draws.kept(key, lambda prompt: prompt, prompt)


def squared_errors(
  subject: Any, drawn: Prompt | Statistics, setting: Any
) -> Float[Array, ' b']:
  """`(f(X, y, x_q) − ŵ·x_q)²`, whose expectation is the in-context risk (eq. 4).

  `subject` is a model, or a learning rule where statistics are drawn.
  """
  if isinstance(drawn, Statistics):
    rule = subject if isinstance(subject, LearningRule) else subject.learning_rule()
    noise_std = jnp.sqrt(setting.noise_variance)
    return jnp.square(drawn.errors(rule, setting.prior_mean, noise_std))
  return jnp.square(subject(drawn) - drawn.y_query)


def make_objective(config: Config, task: Any, statistics: bool) -> Objective:
  """The config's objective, as a function of a model, the step's key and the setting.

  `sampled` is the mean squared error over fresh prompts, `exact` its expectation, the
  exact risk: the gradient is then that of the whole population, and the key is unused.
  With `statistics` prompts are drawn as such.
  """

  def exact(model: Any, key: Key[Array, ''], setting: Any) -> Float[Array, '']:
    return theory.population_risk(model.learning_rule(), setting)

  def sampled(model: Any, key: Key[Array, ''], setting: Any) -> Float[Array, '']:
    drawn = draw(task, key, config.train.batch_size, statistics)
    return jnp.mean(squared_errors(model, drawn, setting))

  return exact if config.objective.name == 'exact' else sampled

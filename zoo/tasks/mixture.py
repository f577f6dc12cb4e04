"""Prompts each of which comes from one of several tasks."""

# A size that the base class declares as a field may be a property here.
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import struct
from jax.core import Tracer
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key

from zoo.core import trees
from zoo.core.beliefs import Belief, values_of
from zoo.core.distributions import Classes, Distribution, GaussianMixture
from zoo.core.errors import UserError, check_number
from zoo.core.prompt import Prompt
from zoo.core.protocols import Predictor, Task
from zoo.estimators.baselines import Describing, Examples
from zoo.estimators.posteriors import Posterior, as_mixture
from zoo.tasks.base import BAYES, BaseTask, ChangedTask, inputs_of, register_task


@register_task('mixture')
@struct.dataclass(eq=False, repr=False)
class Mixture(BaseTask):
  """Prompts each of which comes from one of several tasks.

  For each prompt, a task is drawn by its weight, and the prompt is drawn by its
  `sample_one`. A model must find from the examples which task it sees, and so select an
  algorithm. Labels and targets are those of the task. The latents are a dictionary:
  `part` is the number of the task, from 0, and `of_parts` has the latents of every
  task, although the prompt shows only one of them.

  The Bayes predictor mixes the Bayes predictors of the tasks, each weighted by the
  posterior probability of its task (baseline `bayes`). It exists if every task has a
  `posterior`: linear, sparse and quadratic regression and pools with noise, logistic
  and probit regression, and mixtures of these. It is named `bayes_estimate` if a task
  has only an estimate. `bayes_1` is the Bayes predictor of the first task alone.

  A mixture of linear regression alone has the same distribution as the task, but other
  prompts for the same key.

  Args:
    tasks: At least one task. All must have the same `num_features`, `context_length`,
      `num_outputs`, `label_kind` and loss, and none may hold out prompts. In configs,
      and in `zoo.create_task('mixture', …)`, the argument `parts` has the name and the
      fields of each instead.
    weights: Positive numbers, one for each task. They are taken as probabilities,
      divided by their sum. None gives all tasks the same probability.

  Raises:
    UserError: If a weight is not a number > 0.

  Example:
    >>> sizes = {'num_features': 2, 'context_length': 5}
    >>> parts = {'name': 'linear_regression'}, {'name': 'decision_tree', 'depth': 2}
    >>> task = zoo.create_task('mixture', parts=parts, **sizes)
    >>> prompt = task.sample(jax.random.key(0), 3, latents=True)
    >>> prompt.x.shape, prompt.y.shape, prompt.latents['part'].shape
    ((3, 5, 2), (3, 5), (3,))

  References:
    Bai et al., arXiv 2306.04637.
  """

  tasks: tuple[BaseTask, ...]
  weights: trees.Vector = None

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.tasks, BaseTask):
      raise UserError('tasks is one task; it must be a list of tasks')
    if isinstance(self.tasks, list):
      object.__setattr__(self, 'tasks', tuple(self.tasks))
    # JAX rebuilds a mixture with arrays of any kind, so `check` looks at those.
    if isinstance(self.weights, list | tuple):
      for i, weight in enumerate(self.weights):
        check_number(f'weights[{i}]', weight, above=0.0)
      weights = np.asarray(self.weights, np.float64)
      object.__setattr__(self, 'weights', weights / weights.sum())

  def check(self) -> None:
    number = len(self.tasks) if self.weights is None else len(self.weights)
    if isinstance(self.weights, np.ndarray | jax.Array) and not isinstance(
      self.weights, Tracer
    ):
      for i, weight in enumerate(np.asarray(self.weights).tolist()):
        check_number(f'weights[{i}]', weight, above=0.0)
    if not self.tasks or len(self.tasks) != number:
      raise UserError(
        f'there are {len(self.tasks)} tasks and {number} weights; each task has one, '
        'and there must be a task'
      )
    first = self.tasks[0]
    for i, task in enumerate(self.tasks):
      if not isinstance(task, BaseTask):
        raise UserError(f'tasks[{i}] is {task!r:.80}; it must be a task')
      name = f'tasks[{i}], {type(task).__name__},'
      task.check()
      if task.held_out() is not task:
        raise UserError(f'{name} holds out some of its prompts; it stands alone')
      for field in ('num_features', 'context_length', 'num_outputs', 'label_kind'):
        wanted, own = getattr(first, field), getattr(task, field)
        if own != wanted:
          raise UserError(
            f'{field} of {name} is {own!r}; it must be {wanted!r}, as all of them have '
            'the same'
          )
      if _loss_of(task) is not _loss_of(first):
        raise UserError(f'{name} has a loss of its own; all of them have the same')

  @property
  def probabilities(self) -> Any:
    """The probability of each task, `[k]`."""
    if self.weights is None:
      return np.full(len(self.tasks), 1 / len(self.tasks))
    return self.weights / self.weights.sum()

  @property
  def stationary(self) -> bool:
    """Whether all tasks are stationary."""
    return all(task.stationary for task in self.tasks)

  @property
  def exchangeable(self) -> bool:
    """Whether all tasks are exchangeable."""
    return all(task.exchangeable for task in self.tasks)

  @property
  def num_features(self) -> int:
    """Number of features of an example, d."""
    return self.tasks[0].num_features

  @property
  def context_length(self) -> int:
    """Number of labelled examples of a prompt, C."""
    return self.tasks[0].context_length

  @property
  def num_outputs(self) -> int:
    """Number of outputs of a prediction, k."""
    return self.tasks[0].num_outputs

  @property
  def label_kind(self) -> str:
    """Kind of the labels: 'numbers', 'signs' or 'classes'."""
    return self.tasks[0].label_kind

  def sample_one(self, key: Key[Array, '']) -> Prompt:
    which_key, prompt_key = jax.random.split(key)
    which = jax.random.categorical(
      which_key, jnp.log(jnp.asarray(self.probabilities, float))
    )
    prompts = [task.sample_one(prompt_key) for task in self.tasks]
    return self._chosen(which, prompts)

  def redraw(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws prompts again, as `BaseTask.redraw` says.

    What is kept may say which task a prompt comes from. That task is drawn by the
    density of what is kept in each task.

    Args:
      key: Random key.
      prompt: Prompts `[b]` of this task.
      keep: 'query' or 'inputs'.

    Returns:
      As many prompts, without latents.

    Raises:
      UserError: If the prompts have other sizes than those of this task, a task does
        not say how its prompts are drawn again or how probable its features are, or its
        feature covariance is singular.
    """
    for i, task in enumerate(self.tasks):
      covariance: Any = getattr(task, 'feature_covariance', None)
      if covariance is None or isinstance(covariance, Tracer):
        continue
      if np.linalg.matrix_rank(covariance) < len(covariance):
        raise UserError(
          f'feature_covariance of tasks[{i}], {type(task).__name__}, is singular, so '
          'that features have no density, and prompts of the mixture cannot be drawn '
          'again'
        )
    return super().redraw(key, prompt, keep)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    which_key, prompt_key = jax.random.split(key)
    kept = inputs_of(prompt) if keep == 'inputs' else prompt.x_query[None]
    which = jnp.zeros((), int)
    if len(self.tasks) > 1:
      which = jax.random.categorical(which_key, self._log_densities(kept))
    prompts = [task.redraw_one(prompt_key, prompt, keep) for task in self.tasks]
    return self._chosen(which, prompts)

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    return logsumexp(self._log_densities(x))

  def _log_densities(self, x: Float[Array, 'n d']) -> Float[Array, ' k']:
    """Returns the log density of features together with each task."""
    densities = jnp.stack([task.log_density(x) for task in self.tasks])
    return jnp.log(jnp.asarray(self.probabilities, densities.dtype)) + densities

  def _chosen(self, which: Array, prompts: list[Prompt]) -> Prompt:
    """Returns one of the prompts of the tasks."""
    latents = {'part': which, 'of_parts': tuple(prompt.latents for prompt in prompts)}
    if any(prompt.context_targets is not None for prompt in prompts):
      prompts = [
        prompt
        if prompt.context_targets is not None
        else dataclasses.replace(prompt, context_targets=prompt.y)
        for prompt in prompts
      ]
    prompts = [dataclasses.replace(prompt, latents=None) for prompt in prompts]
    # Over a batch, `lax.switch` would draw the prompts of all tasks, too.
    prompt = jax.tree.map(lambda *leaves: jnp.stack(leaves)[which], *prompts)
    return dataclasses.replace(prompt, latents=latents)

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    return self.tasks[0].loss(prediction, target)

  def mean_weights(self) -> Float[np.ndarray, ' d'] | None:
    of_tasks = [task.mean_weights() for task in self.tasks]
    means = [mean for mean in of_tasks if mean is not None]
    if len(means) < len(self.tasks):
      return None
    return np.asarray(self.probabilities @ np.stack(means))

  def posterior(self) -> Posterior | None:
    of_tasks = [task.posterior() for task in self.tasks]
    posteriors = [
      posterior for posterior in of_tasks if isinstance(posterior, Posterior)
    ]
    if len(posteriors) < len(self.tasks):
      return None
    return MixturePosterior(tuple(posteriors), self.probabilities, self.label_kind)

  def compute_belief(self, prompt: Prompt) -> Belief:
    """Computes the probabilities of the parts.

    Args:
      prompt: Prompts `[b]`.

    Returns:
      The belief, with values `[b, c + 1, number of parts]`.

    Raises:
      UserError: If a part does not say how probable its prompts are.
    """
    posterior = self.posterior()
    if not isinstance(posterior, MixturePosterior):
      without = sorted(
        {type(task).__name__ for task in self.tasks if task.posterior() is None}
      )
      raise self.no_belief(
        f'{" and ".join(without)} with these fields gives no density of prompts; '
        'regression with noise does, linear or logistic'
      )
    names = tuple(
      f'part {i}: {type(task).__name__}' for i, task in enumerate(self.tasks)
    )
    return Belief(values_of(posterior, prompt), names)

  def baselines(self) -> dict[str, Predictor]:
    """Returns the Bayes predictor of the mixture, if known, and the parts' baselines.

    A baseline that is the same for all parts keeps its name, such as `ols`. Any other
    one, and each `bayes`, gets the number of its part, such as `ridge_1`. The Bayes
    predictor of the mixture is named `bayes_estimate` if a part has only an estimate.
    """
    predictors: dict[str, Predictor] = {}
    of_parts = [task.baselines() for task in self.tasks]
    if (posterior := self.posterior()) is not None:
      is_estimate = any('bayes_estimate' in own for own in of_parts)
      predictors['bayes_estimate' if is_estimate else 'bayes'] = posterior
    else:
      without = {type(task).__name__ for task in self.tasks if task.posterior() is None}
      logging.log_first_n(
        logging.WARNING,
        'there is no bayes of this mixture, since %s nothing about the probability of '
        'prompts; regression with noise does, linear or logistic',
        1,
        ' and '.join(sorted(without)) + (' say' if len(without) > 1 else ' says'),
      )
    names = dict.fromkeys(name for own in of_parts for name in own)
    same: dict[str, Predictor] = {}
    # Names of the Bayes predictor come first.
    for name in sorted(names, key=lambda name: name not in BAYES):
      known = {i: own[name] for i, own in enumerate(of_parts, 1) if name in own}
      first = next(iter(known.values()))
      is_same = [*known.values()] == [first] * len(of_parts)
      if is_same and not name.startswith('bayes'):
        same[name] = first
      else:
        predictors |= {f'{name}_{i}': predictor for i, predictor in known.items()}
    return predictors | same

  def shifts(self) -> dict[str, Task]:
    """Returns each part alone, and mixtures of the shifts of the parts, by name.

    A part without a shift stays as it is. Longer contexts need all parts to have them.
    """
    shifts: dict[str, Task] = {
      f'part_{i}': task for i, task in enumerate(self.tasks, 1)
    }
    of_tasks = [task.shifts() for task in self.tasks]
    names = dict.fromkeys(name for own in of_tasks for name in own)
    for name in names:
      # If a part is itself a mixture, its parts have such names.
      if name.startswith('part_'):
        continue
      shifted = tuple(
        own.get(name, task) for own, task in zip(of_tasks, self.tasks, strict=True)
      )
      mixture = dataclasses.replace(self, tasks=shifted)  # pyright: ignore
      # Shifted parts may have different lengths.
      with contextlib.suppress(UserError):
        mixture.check()
        shifts[name] = mixture
    return shifts


@struct.dataclass(eq=False, repr=False)
class MixturePosterior(Posterior, Describing):
  """The predictions of several tasks, weighted by how probable each makes examples.

  Predictions are means of numbers, which are averaged, or logits, whose probabilities
  are averaged.

  Args:
    parts: The Bayes predictor of each task.
    weights: The probability of each task.
    label_kind: Kind of the labels: 'numbers', 'signs' or 'classes'.
  """

  # Some of the parts need it.
  one_by_one = True

  parts: tuple[Posterior, ...]
  weights: trees.Vector
  label_kind: str = struct.field(pytree_node=False, default='numbers')

  @property
  def has_distribution(self) -> bool:
    """Whether each part knows the distribution of its labels."""
    parts_do = all(isinstance(part, Describing) for part in self.parts)
    return parts_do or self.label_kind != 'numbers'

  def distribution(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of the label of each prompt's query."""
    if self.label_kind == 'numbers':
      return super().distribution(prompt)
    if self.label_kind == 'classes':
      return Classes(self(prompt))
    return Classes.of_signs(self(prompt))

  def distributions(self, prompt: Prompt) -> Distribution | Classes:
    """Returns the distribution of each label given those before it, `[b, t]`."""
    if self.label_kind == 'numbers':
      return super().distributions(prompt)
    if self.label_kind == 'classes':
      return Classes(self.predictions(prompt))
    return Classes.of_signs(self.predictions(prompt))

  def describe(self, examples: Examples) -> GaussianMixture:
    """Returns the weighted components of the distributions of all parts."""
    log_weights, means, stds = [], [], []
    for part, weight in zip(self.parts, self.weights, strict=True):
      assert isinstance(part, Describing)
      density, _ = part.weigh(examples)
      of_part = as_mixture(part.describe(examples))
      score = jnp.log(jnp.asarray(weight, density.dtype)) + density
      log_weights.append(score + jax.nn.log_softmax(of_part.log_weights))
      means.append(of_part.means)
      stds.append(of_part.stds)
    return GaussianMixture(*map(jnp.concatenate, (log_weights, means, stds)))

  def belief(self, prompt: Prompt) -> Float[Array, 'b t m']:
    """Returns the posterior of the parts after each number of examples."""

    def posterior(examples: Examples) -> Float[Array, ' m']:
      densities = jnp.stack([part.weigh(examples)[0] for part in self.parts])
      weights = jnp.asarray(self.weights, densities.dtype)
      return jax.nn.softmax(jnp.log(weights) + densities)

    return self._everywhere(posterior, prompt)

  def weigh(self, examples: Examples) -> tuple[Float[Array, ''], Float[Array, '*k']]:
    weighed = [part.weigh(examples) for part in self.parts]
    densities, predictions = (
      jnp.stack(column) for column in zip(*weighed, strict=True)
    )
    scores = jnp.log(jnp.asarray(self.weights, densities.dtype)) + densities
    density = logsumexp(scores)
    if self.label_kind == 'numbers':
      return density, jnp.dot(jax.nn.softmax(scores), predictions)
    if self.label_kind == 'classes':
      return density, logsumexp(
        scores[:, None] + jax.nn.log_softmax(predictions), axis=0
      )
    positive = logsumexp(scores + jax.nn.log_sigmoid(predictions))
    return density, positive - logsumexp(scores + jax.nn.log_sigmoid(-predictions))


def _loss_of(task: BaseTask) -> object:
  """Returns the method of the loss; a mixture and a shift have that of their task."""
  if isinstance(task, ChangedTask):
    return _loss_of(task.task)
  return _loss_of(task.tasks[0]) if isinstance(task, Mixture) else type(task).loss

"""Structural types of predictors: any class with these methods; the base of tasks."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from typing import Any, Protocol, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key

from zoo.core import losses, trees
from zoo.core.errors import UserError, check_count, check_name
from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt

_LENGTHS = 2, 4, 8, 16, 32  # of longer contexts, in those of the task
KEPT = 'query', 'inputs'  # what `redraw` can keep of a prompt
_REDRAWN = 2**32 - 1  # by which the key of a redraw is folded; no place is as large


@runtime_checkable
class Predictor(Protocol):
  """A callable that predicts: a model, an estimator or a learning rule."""

  def __call__(self, prompt: Prompt, /) -> Float[Array, ' b *k']:
    """The prediction for each prompt's query: a number, a logit, or k logits."""
    ...


@runtime_checkable
class PredictsAll(Predictor, Protocol):
  """A predictor that predicts every example of a prompt in one pass."""

  def predictions(self, prompt: Prompt) -> Float[Array, 'b t *k']:
    """The prediction for each example from those before it, that for the query last."""
    ...


@runtime_checkable
class MayPredictAll(PredictsAll, Protocol):
  """A predictor whose class has `predictions`, but not all of whose objects do."""

  predicts_all: bool


def predicts_all(subject: object) -> TypeGuard[PredictsAll]:
  """Whether a predictor has `predictions`, and can give them if it says so."""
  if isinstance(subject, MayPredictAll):
    return subject.predicts_all
  return isinstance(subject, PredictsAll)


@runtime_checkable
class MayIgnoreOrder(Predictor, Protocol):
  """A predictor that says whether the order of the examples matters to it."""

  order_invariant: bool


@runtime_checkable
class Model(Predictor, Protocol):
  """A predictor with parameters: an NNX module. Its class defines everything else."""


@runtime_checkable
class Layered(Predictor, Protocol):
  """A predictor whose readout can read the tokens of every layer."""

  def layer_tokens(self, prompt: Prompt) -> list[Float[Array, 'b n w']]:
    """The tokens before the first layer and after each layer; the query's is last."""
    ...

  def read(
    self, tokens: Float[Array, 'b n w'], prompt: Prompt
  ) -> Float[Array, 'b t *k']:
    """The predictions of the readout from the tokens of any layer."""
    ...


@runtime_checkable
class FollowsRule(Predictor, Protocol):
  """A predictor of the linear family, which follows a learning rule."""

  def learning_rule(self) -> LearningRule:
    """The rule that predicts the same for every prompt."""
    ...


@runtime_checkable
class HasExactForm(Predictor, Protocol):
  """A predictor outside the linear family whose exact risk is known."""

  def exact_form(self) -> DeepRule | Recurrence:
    """The form that predicts the same for every prompt.

    Raises UserError with the reason if these hyper-parameters have none.
    """
    ...


class BaseTask(trees.Tree, abc.ABC):
  """A distribution of prompts, whose `sample_one` draws one.

  A task is a frozen dataclass that JAX maps over as a pytree, such as
  `flax.struct.dataclass` makes: numbers and arrays are arguments of compiled programs,
  sizes and names (`pytree_node=False`) are part of them.
  """

  num_features: int
  context_length: int
  num_outputs: int = 1  # k for classes whose labels are one-hot vectors
  # 'numbers', 'signs' for classes ±1, or 'classes' for one-hot vectors.
  label_kind: str = 'numbers'
  shows_labels: bool = True  # whether the prompts have the labels of their examples
  # Whether any n examples in a row, with the features after them as the query, have the
  # distribution of the first n with those after them.
  stationary: bool = False
  may_miss: bool = (
    False  # whether features may be NaN, which says that they are missing
  )

  def check(self) -> None:
    """Raises UserError for a field that is wrong; called by what builds tasks by name.

    Here it checks the sizes.
    """
    check_count('num_features', self.num_features)
    check_count('context_length', self.context_length)

  @abc.abstractmethod
  def sample_one(self, key: Key[Array, '']) -> Prompt:
    """Draws one prompt, without the axis b: `x [c, d]`, `y [c, *k]`, and so on.

    Its `latents` are any arrays that it was drawn from, or None.

    Sum with `dot` wherever the result is a label: the order in which XLA adds depends
    on the shapes, and so on how many devices share a batch.
    """

  def sample(
    self, key: Key[Array, ''], batch_size: int, latents: bool = False
  ) -> Prompt:
    """Samples `batch_size` ≥ 1 prompts on the device.

    A prompt is a pure function of the key and of its position in the batch: it is the
    same on any number of devices and in a larger batch. With `latents` it also has what
    the task drew and does not show, such as the weights w, for probes; within a program
    of your own that may change the last digits of the others.
    """
    task, batch_size = trees.fresh(self), check_count('batch_size', batch_size)
    program = _program
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((task, key))):
      # Within another program it is traced with that: what the task calls may differ.
      program = jax.jit(functools.partial(_sample), static_argnums=(2, 3))
    prompt = program(task, key, batch_size, False)
    if not latents:
      return prompt
    # By another program, so that the prompts have the same bits.
    drawn = program(task, key, batch_size, True)
    return dataclasses.replace(prompt, latents=drawn)

  def sample_batch(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """What `sample` compiles: prompts of `sample_one`, each with its own key.

    Only `linear_regression` draws other prompts than its `sample_one`, which is drawn
    in mixtures; both have one distribution.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch_size))
    return jax.vmap(self.sample_one)(keys)

  def redraw(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws prompts of this task again, given a part of each that is kept.

    What is drawn has its distribution given what is kept, so that redrawn prompts of
    the task have the distribution of its prompts. What is kept is equal to the bit.

    Args:
      key: Each prompt is drawn with its own key, which follows from this one and the
        prompt's position in the batch.
      prompt: Prompts `[b]` of this task, with all of their examples.
      keep: 'query' keeps the features of the query; the function and the examples are
        drawn again. 'inputs' keeps the features of the query and of all examples; the
        function is drawn again, and so the labels are others.

    Returns:
      As many prompts, without latents.

    Raises:
      UserError: If the prompts have other sizes than those of this task, or if the task
        does not say how they are drawn again; the error says why.

    Example:
      >>> task = zoo.tasks.LinearRegression(num_features=2, context_length=3)
      >>> prompt = task.sample(jax.random.key(0), 4)
      >>> other = task.redraw(jax.random.key(1), prompt, keep='inputs')
      >>> bool(jnp.array_equal(other.x, prompt.x)), bool((other.y == prompt.y).any())
      (True, False)
    """
    check_name('keep', keep, KEPT)
    sizes = self.context_length, self.num_features
    if prompt.x.shape[1:] != sizes:
      raise UserError(
        f'prompt.x has the shape {prompt.x.shape}; to be drawn again, prompts must '
        f'have all examples of the task, {(prompt.x.shape[0], *sizes)}'
      )
    prompt = dataclasses.replace(prompt, latents=None)
    task, program = trees.fresh(self), _redraw_program
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((task, key, prompt))):
      program = jax.jit(_redraw, static_argnums=3)
    drawn = program(task, key, prompt, keep)
    kept: dict[str, Any] = {'x_query': prompt.x_query}
    if keep == 'inputs':
      kept['x'] = prompt.x
    return dataclasses.replace(drawn, latents=None, **kept)

  def redraw_one(self, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
    """Draws one prompt again, without the axis b; `redraw` says what is kept.

    A task that defines it need not care for latents, nor for the bits of what is kept.
    """
    name = type(self).__name__
    raise UserError(
      f'{name} does not say how a prompt is drawn again; define {name}.redraw_one(key, '
      'prompt, keep), or derive it from zoo.tasks.FunctionClass, which has it for '
      'functions that do not depend on the features'
    )

  def log_density(self, x: Float[Array, 'n d']) -> Float[Array, '']:
    """The log density of the features of a prompt, or of its query alone (n = 1).

    A mixture needs it to draw a prompt again: what is kept says something about the
    task that the prompt is of.
    """
    name = type(self).__name__
    raise UserError(
      f'{name} does not say how probable {_words_of(x)} are, so that prompts of a '
      f'mixture with it cannot be drawn again; define {name}.log_density(x)'
    )

  def sample_labels(
    self, key: Key[Array, ''], targets: Float[Array, ' t *k']
  ) -> Float[Array, ' t *k']:
    """Labels, given the targets; the query of `objective.labels='observed'` gets one.

    Here they are drawn from the probabilities of classes; numbers are without noise.
    """
    if self.label_kind == 'classes':
      drawn = jax.random.categorical(key, jnp.log(targets))
      return jax.nn.one_hot(drawn, targets.shape[-1], dtype=targets.dtype)
    if self.label_kind == 'signs':
      return jnp.where(jax.random.bernoulli(key, targets), 1, -1).astype(targets.dtype)
    return targets

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    """The loss of each prediction.

    Here it is that of `label_kind`: the squared error, or the log loss of a logit or of
    the logits of k classes, in nats.
    """
    return losses.LOSSES[self.label_kind](prediction, target)

  def accuracy(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m'] | None:
    """The probability that the most likely label is right; None for numbers."""
    if self.label_kind == 'numbers':
      return None
    return 1 - losses.ERROR_RATES[self.label_kind](prediction, target)

  def held_out(self) -> BaseTask:
    """The task on whose prompts a model that was trained on this one is measured."""
    return self

  def mean_weights(self) -> Float[np.ndarray, ' d'] | None:
    """The mean w* of the weights w, if targets are functions of `w·x`; else None."""
    return None

  def linear_prior(self) -> Any:
    """The `zoo.estimators.linear_prior.LinearPrior` of linear regression.

    None for every other task: the estimators of `zoo.estimators` have no best
    parameters on it.
    """
    return None

  def posterior(self) -> Predictor | None:
    """The `zoo.estimators.posteriors.Posterior` for mixtures; None if unknown."""
    return None

  def baselines(self) -> dict[str, Predictor]:
    """Untrained predictors to compare a model with; the first is the one to beat.

    A baseline named `bayes` has the least expected loss of all predictors; one that
    estimates it by sampling is named `bayes_estimate`. Its method `distribution` says
    how the observed label is distributed, where that is known.
    """
    return {}

  def shifts(self) -> dict[str, BaseTask]:
    """Tasks, by name, on which to test a model that was trained on this one.

    Here the same task with 2 to 32 times as many examples (Lee et al., arXiv
    2310.08049), but for lengths that it refuses; a task without an argument
    `context_length` has no other lengths.
    """
    longer: dict[str, BaseTask] = {}
    if 'context_length' not in trees.arguments(self):
      return longer
    for factor in _LENGTHS:
      length = factor * self.context_length
      with contextlib.suppress(UserError):
        task: Any = dataclasses.replace(self, context_length=length)  # pyright: ignore
        task.check()
        longer[f'context_length={length}'] = task
    return longer


Task = BaseTask  # in annotations


def _sample(task: BaseTask, key: Key[Array, ''], batch_size: int, latents: bool) -> Any:
  """Prompts of a task without what it drew or, with `latents`, that alone."""
  prompt = task.sample_batch(key, batch_size)
  if latents:
    return prompt.latents
  if not isinstance(prompt, Prompt):  # `check_task` says so
    return prompt
  return dataclasses.replace(prompt, latents=None)  # nothing computes them then


_program = jax.jit(_sample, static_argnums=(2, 3))


def _redraw(task: BaseTask, key: Key[Array, ''], prompt: Prompt, keep: str) -> Prompt:
  """Prompts that are drawn again, each with its own key."""
  # With the key of `sample` the function would otherwise be the same again.
  key = jax.random.fold_in(key, _REDRAWN)
  places = jnp.arange(prompt.x.shape[0])
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, places)
  drawn = jax.vmap(lambda key, prompt: task.redraw_one(key, prompt, keep))(keys, prompt)
  return dataclasses.replace(drawn, latents=None)  # nothing computes them then


_redraw_program = jax.jit(_redraw, static_argnums=3)


def _words_of(x: Float[Array, 'n d']) -> str:
  """What features of n examples are, in words."""
  return 'the features of a query' if len(x) == 1 else 'the features of a prompt'

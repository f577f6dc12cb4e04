"""Structural types of models and tasks: any class with these methods will do."""

from __future__ import annotations

from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, Key

from zoo.core.exact_forms import DeepRule, Recurrence
from zoo.core.learning_rule import LearningRule
from zoo.core.prompt import Prompt


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


@runtime_checkable
class Task(Protocol):
  """A distribution of prompts: a subclass of `zoo.tasks.BaseTask`, which is a value."""

  @property
  def num_features(self) -> int:
    """d ≥ 1."""
    ...

  @property
  def context_length(self) -> int:
    """C ≥ 1, the number of labelled examples of a prompt."""
    ...

  @property
  def num_outputs(self) -> int:
    """1 for labels that are numbers or signs, k for one-hot vectors of k classes."""
    ...

  @property
  def label_kind(self) -> str:
    """What labels are: 'numbers', 'signs' or 'classes'."""
    ...

  def sample(
    self, key: Key[Array, ''], batch_size: int, latents: bool = False
  ) -> Prompt:
    """Samples prompts; each is a pure function of the key and its batch position."""
    ...

  def loss(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m']:
    """The loss of each prediction."""
    ...

  def accuracy(
    self, prediction: Float[Array, '*n'], target: Float[Array, '*n']
  ) -> Float[Array, '*m'] | None:
    """The probability that the most likely label is right; None for numbers."""
    ...

  def held_out(self) -> Task:
    """The task on whose prompts a model that was trained on this one is measured."""
    ...

  def mean_weights(self) -> Float[np.ndarray, ' d'] | None:
    """The mean w* of the weights w, if targets are functions of `w·x`; else None."""
    ...

  def baselines(self) -> dict[str, Predictor]:
    """Untrained predictors to compare a model with; the first is the one to beat."""
    ...

  def shifts(self) -> dict[str, Task]:
    """Tasks, by name, on which to test a model that was trained on this one."""
    ...

"""Structural types of models and tasks: any class with these methods will do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, Key

from zoo.learning_rule import LearningRule
from zoo.prompt import Prompt


@runtime_checkable
class Predictor(Protocol):
  """A callable that predicts: a model, an estimator or a learning rule."""

  def __call__(self, prompt: Prompt, /) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    ...


@runtime_checkable
class Model(Predictor, Protocol):
  """A predictor with parameters: an NNX module. Its class defines everything else."""


@runtime_checkable
class FollowsRule(Predictor, Protocol):
  """A predictor of the linear family, which follows a learning rule."""

  def learning_rule(self) -> LearningRule:
    """The rule that predicts the same for every prompt."""
    ...


@runtime_checkable
class Task(Protocol):
  """A distribution of prompts; equal tasks have equal hashes and the same prompts."""

  num_features: int

  def sample(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Samples prompts; each is a pure function of the key and its batch position."""
    ...

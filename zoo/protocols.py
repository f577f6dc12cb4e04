"""What a model and a task have to have, as types; any class that has it will do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, Key

from zoo.learning_rule import LearningRule
from zoo.prompt import Prompt


@runtime_checkable
class Predictor(Protocol):
  """What predicts when it is called: a model, an estimator or a learning rule."""

  def __call__(self, prompt: Prompt, /) -> Float[Array, ' b']:
    """The prediction for each prompt's query."""
    ...


@runtime_checkable
class Model(Predictor, Protocol):
  """A predictor with parameters: an NNX module. What else it has its class says."""


@runtime_checkable
class FollowsRule(Predictor, Protocol):
  """A predictor of the linear family: it can say which learning rule it follows."""

  def learning_rule(self) -> LearningRule:
    """The rule that predicts the same for every prompt."""
    ...


@runtime_checkable
class Task(Protocol):
  """A distribution of prompts; equal tasks, which hash alike, draw the same ones."""

  num_features: int

  def sample(self, key: Key[Array, ''], batch_size: int) -> Prompt:
    """Draws prompts, each a pure function of the key and its position in the batch."""
    ...

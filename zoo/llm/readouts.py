"""Three ways to read a label from a language model, for many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import (
  TYPE_CHECKING,
  Literal,
  NotRequired,
  Protocol,
  TypedDict,
  runtime_checkable,
)

import numpy as np
from jaxtyping import Float64

from zoo.llm.answers import parse_answer, parse_forced
from zoo.llm.benchmarks import Example
from zoo.llm.prompts import Wording

if TYPE_CHECKING:

  class ReadoutConfig(Protocol):
    """The section `readouts` of a config."""

    max_new_tokens: int
    grid_points: int

else:
  from ml_collections import ConfigDict as ReadoutConfig

ReadoutName = Literal['free', 'forced', 'expected']
READOUTS: dict[ReadoutName, str] = {
  'free': 'free generation',
  'forced': 'forced prefix',
  'expected': 'expected value',
}
FORCED_TOKENS = 16  # enough for a number, or for the name of a class


class Readout(TypedDict):
  """A label, None if no answer was parsed, and its source."""

  value: float | str | None
  answer: NotRequired[str]
  mass: NotRequired[float]  # the probability of all labels together
  probabilities: NotRequired[dict[str, float]]  # of each class; they sum to 1


class Answers(TypedDict):
  """A prompt, and each readout of the model's answer to it."""

  prompt: str
  free: Readout
  forced: Readout
  expected: Readout


@runtime_checkable
class Model(Protocol):
  """The interface of `zoo.language_models.LanguageModel` that the experiment uses."""

  name: str
  num_params: int

  def chat(self, user_text: str, answer_prefix: str = '') -> str: ...

  def num_tokens(self, prompt: str) -> int: ...

  def generate(self, prompts: Sequence[str], max_new_tokens: int) -> list[str]: ...

  def log_probabilities(
    self, prompt: str, continuations: Sequence[str]
  ) -> Float64[np.ndarray, ' n']: ...


def read_all(
  model: Model,
  texts: Sequence[str],
  queries: Sequence[Example],
  wording: Wording,
  config: ReadoutConfig,
) -> list[Answers]:
  """Sends the model the message of each query, and reads its answers in three ways.

  The readout `expected` is the expected value over `grid_points` scores of the scale,
  or the most probable class.
  """
  prompts = [model.chat(text) for text in texts]
  prefixed = [model.chat(text, wording.answer_prefix) for text in texts]
  free = model.generate(prompts, config.max_new_tokens)
  forced = model.generate(prefixed, min(FORCED_TOKENS, config.max_new_tokens))
  return [
    {
      'prompt': prompt,
      'free': {'value': parse_answer(answer, wording, query.texts), 'answer': answer},
      'forced': {'value': parse_forced(number, wording), 'answer': number},
      'expected': _expected(model, start, wording, config.grid_points),
    }
    for prompt, start, query, answer, number in zip(
      prompts, prefixed, queries, free, forced, strict=True
    )
  ]


def _expected(model: Model, prompt: str, wording: Wording, grid_points: int) -> Readout:
  scale = wording.scale
  if scale.classes:
    written = [f' {name}' for name in scale.classes]
  else:
    # Written as in the prompt, so that scores have the same tokens.
    grid = np.linspace(scale.low, scale.high, grid_points)
    # If the grid is finer than two decimals, each text counts once.
    written = list(dict.fromkeys(wording.show(value) for value in grid.tolist()))
  logs = np.asarray(model.log_probabilities(prompt, written), np.float64)
  probabilities = np.exp(logs - logs.max())
  probabilities /= probabilities.sum()
  mass = float(np.exp(logs).sum())
  if scale.classes:
    by_class = dict(zip(scale.classes, probabilities.tolist(), strict=True))
    value = scale.classes[int(probabilities.argmax())]
    return {'value': value, 'mass': mass, 'probabilities': by_class}
  return {'value': float(probabilities @ np.array(written, np.float64)), 'mass': mass}

"""Three ways to read a label from a language model, for many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import (
  Any,
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
from zoo.llm.config import Config
from zoo.llm.prompts import Wording

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
  """The interface of a language model that the experiment uses."""

  name: str
  num_params: int
  engine: str  # the libraries and the device that it runs on
  max_length: int | None  # in tokens; None if there is no limit

  def chat(self, user_text: str, answer_prefix: str = '') -> str: ...

  def num_tokens(self, prompt: str) -> int: ...

  def read_beginning(self, prompts: Sequence[str]) -> Any: ...

  def read(self, prompts: Sequence[str], past: Any = None) -> Any: ...

  def generate(
    self, prompts: Sequence[str], max_new_tokens: int, past: Any = None
  ) -> list[str]: ...

  def log_probabilities(
    self, prompts: Sequence[str], continuations: Sequence[str], past: Any = None
  ) -> Float64[np.ndarray, 'b n']: ...


def read_all(
  model: Model,
  texts: Sequence[str],
  queries: Sequence[Example],
  wording: Wording,
  config: Config,
) -> list[Answers]:
  """Sends the model the message for each query, and reads its answers in three ways.

  Each prompt is computed once for all three readouts, and the common beginning of all
  prompts only once. The shorter and the longer half of the prompts are a batch each.
  The readout `expected` is the expected value over `grid_points` scores of the scale,
  or the most probable class.
  """
  prompts = [model.chat(text) for text in texts]
  prefixed = [model.chat(text, wording.answer_prefix) for text in texts]
  written = _written(wording, config.grid_points)
  beginning = model.read_beginning(prompts)
  size = -(-len(prompts) // 2)
  answers: dict[int, Answers] = {}
  by_length = sorted(range(len(prompts)), key=lambda i: model.num_tokens(prompts[i]))
  for start in range(0, len(prompts), size):
    batch = by_length[start : start + size]
    starts = [prefixed[i] for i in batch]
    past = model.read([prompts[i] for i in batch], beginning)
    free = model.generate([prompts[i] for i in batch], config.max_new_tokens, past)
    forced = model.generate(starts, min(FORCED_TOKENS, config.max_new_tokens), past)
    logs = model.log_probabilities(starts, written, past)
    for i, answer, number, log in zip(batch, free, forced, logs, strict=True):
      value = parse_answer(answer, wording, queries[i].texts)
      answers[i] = {
        'prompt': prompts[i],
        'free': {'value': value, 'answer': answer},
        'forced': {'value': parse_forced(number, wording), 'answer': number},
        'expected': _expected(log, written, wording),
      }
  return [answers[i] for i in range(len(prompts))]


def _written(wording: Wording, grid_points: int) -> list[str]:
  """The labels whose probabilities are read, as text after an answer's prefix."""
  scale = wording.scale
  grid = np.linspace(scale.low, scale.high, grid_points).tolist()
  # Written as in the prompt, so that labels have the same tokens. If the grid is finer
  # than two decimals, each text counts once.
  labels = (wording.show(label) for label in scale.classes or grid)
  return [f' {label}' for label in dict.fromkeys(labels)]


def _expected(
  logs: Float64[np.ndarray, ' n'], written: Sequence[str], wording: Wording
) -> Readout:
  classes = wording.scale.classes
  probabilities = np.exp(logs - logs.max())
  probabilities /= probabilities.sum()
  mass = float(np.exp(logs).sum())
  if classes:
    by_class = dict(zip(classes, probabilities.tolist(), strict=True))
    value = classes[int(probabilities.argmax())]
    return {'value': value, 'mass': mass, 'probabilities': by_class}
  return {'value': float(probabilities @ np.array(written, np.float64)), 'mass': mass}

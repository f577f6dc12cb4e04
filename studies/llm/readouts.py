"""Three ways to read a label from a language model, for many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from studies.llm.answers import parse_answer, parse_forced
from studies.llm.benchmarks import Example
from studies.llm.config import Config
from studies.llm.prompts import Wording

READOUTS = {
  'free': 'free generation',
  'forced': 'forced prefix',
  'expected': 'expected value',
}
FORCED_TOKENS = 16  # enough for a number, or for the name of a class
GRID_POINTS = 501  # scores from the lowest to the highest, for the expected value


def read_all(
  model: Any,
  texts: Sequence[str],
  queries: Sequence[Example],
  wording: Wording,
  config: Config,
) -> list[dict[str, Any]]:
  """Sends a `LanguageModel` the message for each query, and reads its answers.

  For each message it returns the prompt and, by readout, the label as `value`, None if
  no answer was parsed, with its source. The readout `expected` is the expected value
  over 501 scores of the scale, or the most probable class.
  """
  prompts = [model.chat(text) for text in texts]
  prefixed = [model.chat(text, wording.answer_prefix) for text in texts]
  labels = label_texts(wording)
  free = model.generate(prompts, config.max_new_tokens)
  forced = model.generate(prefixed, min(FORCED_TOKENS, config.max_new_tokens))
  logs = model.log_probabilities(prefixed, labels)
  answers = []
  for i, query in enumerate(queries):
    value = parse_answer(free[i], wording, query.texts)
    answers.append(
      {
        'prompt': prompts[i],
        'free': {'value': value, 'answer': free[i]},
        'forced': {'value': parse_forced(forced[i], wording), 'answer': forced[i]},
        'expected': _expected(logs[i], labels, wording),
      }
    )
  return answers


def label_texts(wording: Wording) -> list[str]:
  """The labels whose probabilities are read, as text after an answer's prefix.

  They are written as in a prompt, so that they have the same tokens.
  """
  scale = wording.scale
  grid = np.linspace(scale.low, scale.high, GRID_POINTS).tolist()
  # If the grid is finer than two decimals, each text counts once.
  labels = (wording.show(label) for label in scale.classes or grid)
  return [f' {label}' for label in dict.fromkeys(labels)]


def _expected(
  logs: Float64[np.ndarray, ' n'], labels: Sequence[str], wording: Wording
) -> dict[str, Any]:
  """The value, and as `mass` the probability of all labels together."""
  classes = wording.scale.classes
  probabilities = np.exp(logs - logs.max())
  probabilities /= probabilities.sum()
  mass = float(np.exp(logs).sum())
  if classes:
    by_class = dict(zip(classes, probabilities.tolist(), strict=True))
    value = classes[int(probabilities.argmax())]
    return {'value': value, 'mass': mass, 'probabilities': by_class}
  return {'value': float(probabilities @ np.array(labels, np.float64)), 'mass': mass}

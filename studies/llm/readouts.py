"""Three readouts: ways to read a label from a language model."""

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
FORCED_TOKENS = 16  # the most tokens of a number or of the name of a class
GRID_POINTS = 501  # the number of scores of the scale for the expected value


def read_all(
  model: Any,
  texts: Sequence[str],
  queries: Sequence[Example],
  wording: Wording,
  config: Config,
) -> list[dict[str, Any]]:
  """Sends a language model one message for each query, and reads its answers.

  The readout `free` parses a free answer. `forced` parses the text after the prefix of
  an answer. `expected` is the expected value over 501 scores of the scale, weighted by
  the probabilities of their texts after the prefix; with classes, it is the most
  probable class.

  Args:
    model: A `LanguageModel`.
    texts: The user's message for each query.
    queries: The queries.
    wording: The wording of the benchmark.
    config: The section `readouts` of the config.

  Returns:
    For each message the prompt and, by readout, a dictionary with the label as `value`.
    It is None if no answer was parsed. The dictionary has the `answer` as text, or the
    probability of all labels together as `mass`.
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
  """Returns the labels whose probabilities are read, as text after an answer's prefix.

  They are written as in a prompt, so that they have the same tokens.
  """
  scale = wording.scale
  grid = np.linspace(scale.low, scale.high, GRID_POINTS).tolist()
  # If the grid is finer than two decimals, several scores have one text, which counts
  # once.
  labels = (wording.show(label) for label in scale.classes or grid)
  return [f' {label}' for label in dict.fromkeys(labels)]


def _expected(
  logs: Float64[np.ndarray, ' n'], labels: Sequence[str], wording: Wording
) -> dict[str, Any]:
  """Returns the value, and as `mass` the probability of all labels together."""
  classes = wording.scale.classes
  probabilities = np.exp(logs - logs.max())
  probabilities /= probabilities.sum()
  mass = float(np.exp(logs).sum())
  if classes:
    by_class = dict(zip(classes, probabilities.tolist(), strict=True))
    value = classes[int(probabilities.argmax())]
    return {'value': value, 'mass': mass, 'probabilities': by_class}
  return {'value': float(probabilities @ np.array(labels, np.float64)), 'mass': mass}

"""Three ways to read a label out of a language model, for many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zoo.llm.answers import parse_answer, parse_forced
from zoo.llm.benchmarks import Example
from zoo.llm.prompts import Wording

READOUTS = {
  'free': 'free generation',
  'forced': 'forced prefix',
  'expected': 'expected value',
}
FORCED_TOKENS = 16  # enough for a number, or for the name of a class

# A `zoo.language_models.LanguageModel`, or what answers to the same calls.
Model = Any


def read_all(
  model: Model,
  texts: Sequence[str],
  queries: Sequence[Example],
  wording: Wording,
  config: Any,
) -> list[dict[str, Any]]:
  """The prompt and the three readouts of what users say of each query.

  `config` is the section `readouts`. A value is None where no answer can be told. The
  expected value is that over `grid_points` scores of the scale, or the most probable
  class; `mass` is what the model gives to all of them together.
  """
  prompts = [model.chat(text) for text in texts]
  begun = [model.chat(text, wording.answer_prefix) for text in texts]
  free = model.generate(prompts, config.max_new_tokens)
  forced = model.generate(begun, min(FORCED_TOKENS, config.max_new_tokens))
  return [
    {
      'prompt': prompt,
      'free': {'value': parse_answer(answer, wording, query.texts), 'answer': answer},
      'forced': {'value': parse_forced(number, wording), 'answer': number},
      'expected': _expected(model, start, wording, config.grid_points),
    }
    for prompt, start, query, answer, number in zip(
      prompts, begun, queries, free, forced, strict=True
    )
  ]


def _expected(
  model: Model, prompt: str, wording: Wording, grid_points: int
) -> dict[str, Any]:
  scale = wording.scale
  if scale.classes:
    written = [f' {name}' for name in scale.classes]
  else:
    # As scores are written in the prompt, so that no tokenizer sees another form.
    grid = np.linspace(scale.low, scale.high, grid_points)
    # Where the grid is finer than two decimals, each text counts once.
    written = list(dict.fromkeys(wording.show(value) for value in grid.tolist()))
  logs = np.asarray(model.log_probabilities(prompt, written), np.float64)
  probabilities = np.exp(logs - logs.max())
  probabilities /= probabilities.sum()
  mass = float(np.exp(logs).sum())
  if scale.classes:
    told = dict(zip(scale.classes, probabilities.tolist(), strict=True))
    value = scale.classes[int(probabilities.argmax())]
    return {'value': value, 'mass': mass, 'probabilities': told}
  return {'value': float(probabilities @ np.array(written, np.float64)), 'mass': mass}

"""The prompts of the two arms: what is drawn, and how it is worded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from zoo.llm.benchmarks import Example
from zoo.llm.guesses import Scale


@dataclasses.dataclass(frozen=True)
class Draw:
  """Places in their splits: of the query, and of the examples in their order."""

  query: int
  context: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Wording:
  """The words of a benchmark, which the parser of answers knows too."""

  instruction: str
  inputs: tuple[str, ...]  # the name of each text
  label: str
  scale: Scale

  @property
  def answer_prefix(self) -> str:
    """What an answer begins with; a class brings its own space."""
    return f'{self.label}:' if self.scale.classes else f'{self.label}: '

  def show(self, label: float | str) -> str:
    """A label or a guess as it is written: two decimals, or the name of the class."""
    return label if isinstance(label, str) else f'{label:.2f}'


def draw(
  seed: int, index: int, num_queries: int, num_contexts: int, num_examples: int
) -> Draw:
  """The draw of a prompt, a pure function of its arguments.

  No two prompts of a seed share their query. The examples of a shorter context are the
  first of those of a longer one.
  """
  order = np.random.default_rng(seed).permutation(num_queries)
  context = np.random.default_rng((seed, index)).permutation(num_contexts)
  return Draw(int(order[index]), tuple(context[:num_examples].tolist()))


def prompt_text(
  wording: Wording,
  context: Sequence[Example],
  query: Example,
  guesses: Sequence[float | str] | None = None,
) -> str:
  """What the user says: the task, the examples, the query, and what to answer.

  `guesses` are those of the examples and then that of the query; None leaves them out,
  and every sentence on them.
  """
  label = wording.label.lower()
  blocks = [wording.instruction]
  if guesses is not None:
    blocks[0] += (
      f' Each item comes with an initial guess of its {label}, made by a small model; '
      'it may be wrong.'
    )
  for place, example in enumerate([*context, query]):
    lines = [
      f'{name}: {text}'
      for name, text in zip(wording.inputs, example.texts, strict=True)
    ]
    if guesses is not None:
      lines.append(f'Initial guess: {wording.show(guesses[place])}')
    if place < len(context):
      lines.append(f'{wording.label}: {wording.show(example.label)}')
    blocks.append('\n'.join(lines))
  scale = wording.scale
  allowed = f'a number from {scale.low:g} to {scale.high:g} with two decimals'
  if scale.classes:
    allowed = f'one of {", ".join(scale.classes)}'
  ask = f'Give the {label} of the last item as {allowed}.'
  if guesses is not None:
    ask = f'Refine the initial guess of the last item. {ask}'
  blocks.append(f'{ask} Answer with "{wording.label}:" and nothing else.')
  return '\n\n'.join(blocks)

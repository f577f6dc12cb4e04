"""The prompts of the two arms: their examples and their wording."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np

from zoo.llm.benchmarks import Benchmark, Example
from zoo.llm.guesses import Guesses, Scale


@dataclasses.dataclass(frozen=True)
class Indices:
  """The positions of a prompt's query and examples in their splits."""

  query: int
  context: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Wording:
  """The wording of a benchmark, for its prompts and for the parser of answers."""

  instruction: str
  inputs: tuple[str, ...]  # the name of each text
  label: str
  scale: Scale

  @property
  def answer_prefix(self) -> str:
    """The start of an answer; the space before a class belongs to its first token."""
    return f'{self.label}:' if self.scale.classes else f'{self.label}: '

  def show(self, label: float | str) -> str:
    """A label or a guess as text: two decimals, or the name of the class."""
    return label if isinstance(label, str) else f'{label:.2f}'


def sample_indices(
  seed: int, index: int, num_queries: int, num_contexts: int, num_examples: int
) -> Indices:
  """The query and the examples of a prompt, a pure function of the arguments.

  No two prompts of a seed share a query. A shorter context has the first examples of a
  longer context.
  """
  order = np.random.default_rng(seed).permutation(num_queries)
  context = np.random.default_rng((seed, index)).permutation(num_contexts)
  return Indices(int(order[index]), tuple(context[:num_examples].tolist()))


def prompt_text(
  wording: Wording,
  context: Sequence[Example],
  query: Example,
  guesses: Sequence[float | str] | None = None,
) -> str:
  """The user's message: the task, the examples, the query, and what to answer.

  `guesses` has the guesses of the examples, then that of the query. None leaves out the
  guesses and all sentences about them.
  """
  label = wording.label.lower()
  blocks = [wording.instruction]
  if guesses is not None:
    blocks[0] += (
      f' Each item comes with an initial guess of its {label}, made by a small model; '
      'it may be wrong.'
    )
  for i, example in enumerate([*context, query]):
    lines = [
      f'{name}: {text}'
      for name, text in zip(wording.inputs, example.texts, strict=True)
    ]
    if guesses is not None:
      lines.append(f'Initial guess: {wording.show(guesses[i])}')
    if i < len(context):
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


class Record(TypedDict):
  """The facts about a prompt that do not depend on its answers."""

  index: int
  query: int
  context: list[int]
  label: float | str
  guess: float | str
  context_mean: float | str
  constant: float | str
  context_guess_loss: float | None
  # −log p of the right class, if labels are classes and the guess has probabilities
  guess_log_loss: float | None
  constant_log_loss: float | None


class Prompts:
  """All prompts of a run: a pure function of seed, index, data and guesses."""

  def __init__(
    self,
    benchmark: Benchmark,
    wording: Wording,
    guesses: Guesses,
    *,
    seed: int,
    num_prompts: int,
    num_examples: int,
    context_split: str,
  ):
    scale = wording.scale
    self.wording = wording
    self.guess_loss_by_split = {
      split: _mean(
        scale.loss(guess, example.label)
        for guess, example in zip(guesses.labels[split], examples, strict=True)
      )
      for split, examples in benchmark.splits.items()
    }
    self._queries, self._contexts = (
      benchmark.splits[split] for split in ('test', context_split)
    )
    self._guesses = guesses.labels['test']
    self._context_guesses = guesses.labels[context_split]
    self._probabilities: list[list[float]] | None = None
    if guesses.probabilities is not None:
      self._probabilities = guesses.probabilities['test']
    of_train = [example.label for example in benchmark.splits['train']]
    self._constant = scale.middle(of_train)
    self._frequencies = [of_train.count(name) / len(of_train) for name in scale.classes]
    self._seed, self._num_examples = seed, num_examples
    self._num_prompts = num_prompts

  def __len__(self) -> int:
    return self._num_prompts

  def query(self, index: int) -> Example:
    """The query of a prompt."""
    return self._queries[self._indices(index).query]

  def texts(self, index: int) -> list[str]:
    """The user's message without guesses, and with them."""
    indices = self._indices(index)
    context = [self._contexts[i] for i in indices.context]
    guesses = [self._context_guesses[i] for i in indices.context]
    guesses.append(self._guesses[indices.query])
    query = self._queries[indices.query]
    return [
      prompt_text(self.wording, context, query),
      prompt_text(self.wording, context, query, guesses),
    ]

  def record(self, index: int) -> Record:
    """The part of a line of `prompts.jsonl` that does not depend on the answers."""
    indices, scale = self._indices(index), self.wording.scale
    labels = [self._contexts[i].label for i in indices.context]
    losses = (
      scale.loss(self._context_guesses[i], self._contexts[i].label)
      for i in indices.context
    )
    label = self._queries[indices.query].label
    of_guess = None
    if self._probabilities is not None:
      of_guess = scale.log_loss(self._probabilities[indices.query], label)
    return {
      'index': index,
      'query': indices.query,
      'context': list(indices.context),
      'label': label,
      'guess': self._guesses[indices.query],
      'context_mean': scale.middle(labels) if labels else self._constant,
      'constant': self._constant,
      'context_guess_loss': _mean(losses) if indices.context else None,
      'guess_log_loss': of_guess,
      'constant_log_loss': (
        scale.log_loss(self._frequencies, label) if scale.classes else None
      ),
    }

  def _indices(self, index: int) -> Indices:
    return sample_indices(
      self._seed, index, len(self._queries), len(self._contexts), self._num_examples
    )


def _mean(values: Iterable[float]) -> float:
  listed = list(values)
  return sum(listed) / len(listed)

"""The prompts of the two arms: their examples and their wording."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from studies.llm.benchmarks import Benchmark, Example
from studies.llm.config import Config
from studies.llm.guesses import Guesses, LabelScale

WITHOUT, WITH = ARMS = 'without_guess', 'with_guess'


@dataclasses.dataclass(frozen=True)
class Wording:
  """The wording of a benchmark, for its prompts and for the parser of answers."""

  instruction: str
  inputs: tuple[str, ...]  # the name of each text
  label: str
  scale: LabelScale

  @property
  def answer_prefix(self) -> str:
    """The start of an answer, without the space, which may be part of the next token.

    Many tokenizers have tokens such as ` 3`, which a space alone would exclude.
    """
    return f'{self.label}:'

  def show(self, label: float | str) -> str:
    """A label or a guess as text: two decimals, or the name of the class."""
    return label if isinstance(label, str) else f'{label:.2f}'


class AskedPrompt(NamedTuple):
  """A query, the user's message by arm, and the facts for the line of the prompt."""

  query: Example
  texts: dict[str, str]
  record: dict[str, Any]  # index, indices of query and context, label, guess, baselines


def make_prompts(
  config: Config, benchmark: Benchmark, wording: Wording, guesses: Guesses
) -> list[AskedPrompt]:
  """The prompts of a config: each a function of seed, index, data and guesses."""
  scale, split, splits = wording.scale, config.prompts.context_split, benchmark.splits
  constant = scale.middle([example.label for example in splits['train']])
  sizes = len(splits['test']), len(splits[split]), config.prompts.num_examples
  prompts = []
  for index in range(config.prompts.num_prompts):
    place, context = sample_indices(config.seed, index, *sizes)
    query, examples = splits['test'][place], [splits[split][i] for i in context]
    guess, of_context = guesses['test'][place], [guesses[split][i] for i in context]
    texts = {
      WITHOUT: prompt_text(wording, examples, query),
      WITH: prompt_text(wording, examples, query, [*of_context, guess]),
    }
    labels = [example.label for example in examples]
    record = {
      'index': index,
      'query': place,
      'context': context,
      'label': query.label,
      'guess': guess,
      'context_mean': scale.middle(labels) if labels else constant,
      'constant': constant,
    }
    prompts.append(AskedPrompt(query, texts, record))
  return prompts


def sample_indices(
  seed: int, index: int, num_queries: int, num_contexts: int, num_examples: int
) -> tuple[int, list[int]]:
  """The places of a prompt's query and examples, a pure function of the arguments.

  No two prompts of a seed share a query. A shorter context has the first examples of a
  longer context.
  """
  order = np.random.default_rng(seed).permutation(num_queries)
  context = np.random.default_rng((seed, index)).permutation(num_contexts)
  return int(order[index]), context[:num_examples].tolist()


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

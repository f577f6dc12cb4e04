"""The prompts of the two arms, with and without guesses: examples and wording."""

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
  """The wording of a benchmark, which prompts and the parser of answers use.

  Attributes:
    instruction: The sentences that say what to do.
    inputs: The names of the texts of an example.
    label: The name of the label.
    scale: The scale of the labels.
  """

  instruction: str
  inputs: tuple[str, ...]
  label: str
  scale: LabelScale

  @property
  def answer_prefix(self) -> str:
    """The start of an answer, without the space that follows it.

    Many tokenizers have tokens such as ` 3`. A prefix that ends with a space would
    exclude them.
    """
    return f'{self.label}:'

  def show(self, label: float | str) -> str:
    """Returns a label or a guess as text: two decimals, or the name of the class."""
    return label if isinstance(label, str) else f'{label:.2f}'


class AskedPrompt(NamedTuple):
  """A query with its two prompts.

  Attributes:
    query: The query.
    texts: The user's message by arm.
    record: The fields of the prompt's row: its index, the indices of the query and of
      the examples, the label, the guess and the baselines.
  """

  query: Example
  texts: dict[str, str]
  record: dict[str, Any]


def make_prompts(
  config: Config, benchmark: Benchmark, wording: Wording, guesses: Guesses
) -> list[AskedPrompt]:
  """Makes the prompts of a config.

  A prompt depends only on the seed, its index, the data and the guesses.

  Args:
    config: The config of the experiment.
    benchmark: The examples.
    wording: The wording of the prompts.
    guesses: The guesses of all examples by split.

  Returns:
    The prompts, in the order of their indices.
  """
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
  """Draws the query and the examples of a prompt.

  The draw is a pure function of the arguments. The prompts of one seed have different
  queries. A shorter context has the first examples of a longer one.

  Args:
    seed: The seed of the config.
    index: The index of the prompt, below `num_queries`.
    num_queries: The number of examples in the split of the queries.
    num_contexts: The number of examples in the split of the contexts.
    num_examples: The number of examples in the prompt.

  Returns:
    The index of the query, and those of the examples, in their splits.
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
  """Returns the user's message: the task, the examples, the query, and what to answer.

  Args:
    wording: The wording of the benchmark.
    context: The examples.
    query: The query, whose label is left out.
    guesses: The guesses of the examples, and last that of the query. None leaves out
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

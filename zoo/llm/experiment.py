"""The experiment: guesses, prompts, and the answers of a language model."""

from __future__ import annotations

import copy
import json
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from absl import logging

from zoo.core.errors import RunError, UserError, check_name, check_number
from zoo.host.files import user_path, write_atomically
from zoo.host.interruption import Interruption
from zoo.llm import guesses as guess_models
from zoo.llm.benchmarks import Benchmark
from zoo.llm.config import Config, validate
from zoo.llm.guesses import Guesses, Scale
from zoo.llm.loaded import Loaded
from zoo.llm.prompts import Prompts, Wording
from zoo.llm.readouts import Answers, Model
from zoo.llm.records import (
  GUESSES,
  PROMPTS,
  SUMMARY,
  ask,
  read_guesses,
  read_lines,
  read_model_facts,
  write_guesses,
)
from zoo.llm.report import plot
from zoo.llm.summary import Line, ModelFacts, PromptFacts, Summary, summarise
from zoo.reports.plots import write_plot
from zoo.storage.workdir import locked, open_workdir

_KIND = 'language-model experiment'  # of the workdir


class Run(NamedTuple):
  """A checked run: its prompts, its model, and the folder of the answers."""

  config: Config
  benchmark: Benchmark
  guesses: Guesses
  prompts: Prompts
  out: pathlib.Path
  model: Model | None  # None if the run is finished
  finished: Summary | None

  def lines(self) -> list[Line] | None:
    """The lines of all prompts; None if one has no line yet."""
    found = read_lines(self.out / PROMPTS, self.prompts)
    if len(found) < len(self.prompts):
      return None
    return [found[index] for index in range(len(self.prompts))]


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> Summary | None:
  """Asks a language model with and without initial guesses; returns the summary.

  Writes to the folder `out`: `guesses.json`, a line in `prompts.jsonl` as soon as a
  prompt is answered, and at the end `summary.json` and figure 6. Prompts that have a
  line are not asked again, so the same call resumes after an interruption; after
  SIGTERM it returns None. `data` is the folder of a JSONL benchmark, or of the files of
  a published one; these are not needed once they are built into TFDS's data folder.

  Raises UserError, and leaves `out` unchanged, for a mistake in the config, the data or
  the weights, for prompts that do not fit into the cache, and for an `out` with other
  content; RunError if `out` is damaged or cannot be written.
  """
  return complete(prepare(config, out, data, Loaded()))


def prepare(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None,
  loaded: Loaded,
) -> Run:
  """The run that `run` would complete; raises the same errors, and writes nothing."""
  validate(config)
  out = user_path(out)
  benchmark = loaded.benchmark(config, data)
  wording = wording_of(config, benchmark)
  _check_sizes(config, benchmark)
  guess_models.check(config.guess, benchmark)
  config = _with_checksum(config, benchmark)
  guesses = None
  if (out / 'config.json').is_file():
    open_workdir(out, config, _KIND)  # raises before the slow steps
    guesses = read_guesses(out / GUESSES)
    if guesses is not None:
      prompts = _prompts(config, benchmark, wording, guesses)
      if (finished := _finished(config, benchmark, prompts, out)) is not None:
        return Run(config, benchmark, guesses, prompts, out, None, finished)
  model = loaded.model(config)
  if guesses is None:
    guesses = loaded.guesses(config, benchmark, wording.scale)
  prompts = _prompts(config, benchmark, wording, guesses)
  _check_lengths(prompts, model, config)
  return Run(config, benchmark, guesses, prompts, out, model, None)


def begin(prepared: Run) -> None:
  """Writes the config and the guesses of a run; raises UserError or OSError."""
  open_workdir(prepared.out, prepared.config, _KIND)
  write_guesses(prepared.guesses, prepared.out / GUESSES)


def complete(
  prepared: Run, without_guess: Sequence[Answers] | None = None
) -> Summary | None:
  """Asks the prompts that a run has not asked yet, and returns and raises as `run`.

  `without_guess` has the answers to all prompts without guesses, if they are known from
  a run whose prompts differ only in the guesses; then only the other arm is asked.
  """
  if prepared.finished is not None:
    return prepared.finished
  out = prepared.out
  open_workdir(out, prepared.config, _KIND)
  try:
    with locked(out), Interruption() as interruption:
      write_guesses(prepared.guesses, out / GUESSES)
      return _ask_all(prepared, without_guess, interruption)
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error


def _ask_all(
  prepared: Run,
  without_guess: Sequence[Answers] | None,
  interruption: Interruption,
) -> Summary | None:
  """Asks the prompts that have no line yet; writes figure 6 and the summary."""
  config, benchmark, _, prompts, out, model, _ = prepared
  assert model is not None
  lines = ask(
    prompts,
    model,
    config.readouts,
    config.model.batch_size,
    out / PROMPTS,
    interruption,
    without_guess,
  )
  interruption.raise_if_ctrl_c()
  if lines is None:
    return None
  facts: ModelFacts = {
    'model': model.name,
    'num_params': model.num_params,
    'engine': model.engine,
  }
  summary = _summary(config, benchmark, prompts, lines, facts)
  _warn_of_unparsed(summary)
  write_plot(plot(summary, lines), out)
  write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + '\n')
  return summary


def _with_checksum(config: Config, benchmark: Benchmark) -> Config:
  """The config with the checksum of the data, so that other data make another run."""
  config = copy.deepcopy(config)
  with config.unlocked():
    config.benchmark.sha256 = benchmark.sha256
  return config


def _prompts(
  config: Config, benchmark: Benchmark, wording: Wording, guesses: Guesses
) -> Prompts:
  section = config.prompts
  return Prompts(
    benchmark,
    wording,
    guesses,
    seed=config.seed,
    num_prompts=section.num_prompts,
    num_examples=section.num_examples,
    context_split=section.context_split,
  )


def _finished(
  config: Config, benchmark: Benchmark, prompts: Prompts, out: pathlib.Path
) -> Summary | None:
  """The summary of a finished run; None if prompts are left to ask."""
  facts = read_model_facts(out / SUMMARY)
  if facts is None:
    return None
  lines = read_lines(out / PROMPTS, prompts)
  if len(lines) < len(prompts):
    return None
  ordered = [lines[index] for index in range(len(prompts))]
  return _summary(config, benchmark, prompts, ordered, facts)


def _summary(
  config: Config,
  benchmark: Benchmark,
  prompts: Prompts,
  lines: Sequence[Line],
  facts: ModelFacts,
) -> Summary:
  guess = config.guess
  asked: PromptFacts = {
    'benchmark': config.benchmark.name,
    'data_sha256': benchmark.sha256,
    'seed': config.seed,
    'num_examples': config.prompts.num_examples,
    'context_split': config.prompts.context_split,
    'guess': {
      'model': guess.model,
      'bias': guess.bias,
      'noise': guess.noise,
      'shuffled': guess.shuffled,
    },
    'guess_loss_by_split': prompts.guess_loss_by_split,
  }
  return {**facts, **asked, **summarise(lines, prompts.wording.scale)}


def wording_of(config: Config, benchmark: Benchmark) -> Wording:
  """The wording of a benchmark, with its scale; raises UserError if they do not fit."""
  section = config.benchmark
  inputs = tuple(section.inputs)
  num_texts = len(benchmark.splits['train'][0].texts)
  if len(inputs) != num_texts:
    raise UserError(
      f'config.benchmark.inputs is {inputs}; it must have {num_texts} names, since '
      f'each example has {num_texts} inputs'
    )
  if benchmark.classes:
    if section.low is not None or section.high is not None:
      raise UserError(
        'config.benchmark.low and high must be None if labels are classes, as here: '
        f'{", ".join(benchmark.classes)}'
      )
    scale = Scale(0.0, 0.0, benchmark.classes)
  else:
    low = check_number('config.benchmark.low', section.low)
    high = check_number('config.benchmark.high', section.high, above=low)
    scale = Scale(low, high)
    for split, examples in benchmark.splits.items():
      for example in examples:
        if not low <= float(example.label) <= scale.high:
          raise UserError(
            f'the split {split!r} has the label {example.label}; by '
            f'config.benchmark.low and high it must be from {low:g} to {scale.high:g}'
          )
  return Wording(section.instruction, inputs, section.label, scale)


def _check_sizes(config: Config, benchmark: Benchmark) -> None:
  """Raises UserError if a split is missing or too small for the prompts."""
  section, splits = config.prompts, benchmark.splits
  check_name('split in config.prompts.context_split:', section.context_split, splits)
  for name, value, split in (
    ('num_prompts', section.num_prompts, 'test'),
    ('num_examples', section.num_examples, section.context_split),
  ):
    if value > len(splits[split]):
      raise UserError(
        f'config.prompts.{name} is {value}; it must be ≤ {len(splits[split])}, the '
        f'number of examples in {split!r}'
      )


def _check_lengths(prompts: Prompts, model: Model, config: Config) -> None:
  if model.max_length is None:
    return
  longest = model.max_length - config.readouts.max_new_tokens
  for index in range(len(prompts)):
    for text in prompts.texts(index):
      length = model.num_tokens(model.chat(text, prompts.wording.answer_prefix))
      if length > longest:
        raise UserError(
          f'prompt {index} has {length} tokens, and {config.readouts.max_new_tokens} '
          f'may follow; {model.name} takes {model.max_length}: make '
          'config.prompts.num_examples smaller'
        )


def _warn_of_unparsed(summary: Summary) -> None:
  for arm, readouts in summary['arms'].items():
    for readout, found in readouts.items():
      if not found['num_parsed']:
        logging.warning(
          'no answer in the arm %s, readout %s, could be parsed; see the answers in %s',
          *(arm, readout, PROMPTS),
        )

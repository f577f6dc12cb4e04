"""The experiment: guesses, prompts, and the answers of a language model."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from zoo.core.errors import RunError, UserError, check_name, check_number
from zoo.host.files import user_path, write_atomically
from zoo.host.interruption import Interruption
from zoo.llm import guesses as guess_models
from zoo.llm.benchmarks import Benchmark
from zoo.llm.config import Config, changed, validate
from zoo.llm.guesses import Guesses, Scale
from zoo.llm.loaded import Loaded
from zoo.llm.prompts import ARMS, WITH, WITHOUT, Prompt, Wording, make_prompts
from zoo.llm.readouts import Answers, Model, read_all
from zoo.llm.records import (
  GUESSES,
  PROMPTS,
  SUMMARY,
  append_lines,
  read_if_there,
  read_lines,
  remove_incomplete_line,
)
from zoo.llm.report import plot
from zoo.llm.summary import Line, Summary, summarise
from zoo.reports.plots import write_plot
from zoo.storage.workdir import locked, open_workdir

_KIND = 'language-model experiment'  # of the workdir


@dataclasses.dataclass
class Run:
  """A checked run: its prompts, and the lines of those that are answered."""

  config: Config
  out: pathlib.Path
  benchmark: Benchmark
  wording: Wording
  guesses: Guesses
  prompts: Sequence[Prompt]
  lines: dict[int, Line]  # by index
  model: Model | None = None  # None if the run is finished
  summary: Summary | None = None  # of a finished run

  @property
  def is_answered(self) -> bool:
    """Whether all prompts have a line."""
    return len(self.lines) == len(self.prompts)

  def ordered(self) -> list[Line]:
    """The lines of all prompts, once they are answered."""
    return [self.lines[index] for index in range(len(self.prompts))]


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> Summary | None:
  """Asks a language model with and without initial guesses; returns the summary.

  Writes to the folder `out`: `guesses.json`, a line in `prompts.jsonl` as soon as a
  prompt is answered, and at the end `summary.json` and figure 6. Prompts that have a
  line are not asked again, so the same call resumes after an interruption; after
  SIGTERM it returns None. `data` is the folder of the files of a benchmark.

  Raises UserError, and leaves `out` unchanged, for a mistake in the config, the data or
  the weights, for prompts that do not fit into the cache, and for an `out` with other
  content; RunError if `out` is damaged or cannot be written.
  """
  return complete(prepare(config, out, Loaded(config, data)))


def prepare(config: Config, out: str | os.PathLike[str], loaded: Loaded) -> Run:
  """The run that `run` would complete; raises the same errors, and writes nothing."""
  validate(config)
  out = user_path(out)
  benchmark = loaded.benchmark
  wording = wording_of(config, benchmark)
  _check_sizes(config, benchmark)
  guess_models.check(config.guess, benchmark)
  # Other data make another run.
  config = changed(config, benchmark={'sha256': benchmark.sha256})
  guesses, summary = None, None
  is_begun = (out / 'config.json').is_file()
  if is_begun:
    open_workdir(out, config, _KIND)  # raises before the slow steps
    guesses = read_if_there(out / GUESSES, dict)
    summary = read_if_there(out / SUMMARY, Summary)
  if guesses is None:
    loaded.model(config.guess)  # raises before the slow guesses
    guesses = loaded.guesses(config.guess, wording.scale)
  prompts = make_prompts(config, benchmark, wording, guesses)
  lines = read_lines(out / PROMPTS) if is_begun else {}
  prepared = Run(config, out, benchmark, wording, guesses, prompts, lines)
  if prepared.is_answered:
    prepared.summary = summary
  if prepared.summary is None:
    prepared.model = loaded.model(config.guess)
    _check_lengths(prepared, prepared.model)
  return prepared


def begin(prepared: Run) -> None:
  """Writes the config and the guesses of a run; raises UserError or OSError."""
  open_workdir(prepared.out, prepared.config, _KIND)
  write_atomically(prepared.out / GUESSES, json.dumps(prepared.guesses) + '\n')


def complete(
  prepared: Run, without_guess: Sequence[Answers] | None = None
) -> Summary | None:
  """Asks the prompts that a run has not asked yet, and returns and raises as `run`.

  `without_guess` has the answers to all prompts without guesses, if they are known from
  a run whose prompts differ only in the guesses; then only the other arm is asked.
  """
  model, out = prepared.model, prepared.out
  if prepared.summary is not None or model is None:
    return prepared.summary
  try:
    begin(prepared)
    with locked(out), Interruption() as interruption:
      # Another process may have asked some in the meantime.
      remove_incomplete_line(out / PROMPTS)
      prepared.lines = read_lines(out / PROMPTS)
      _ask(prepared, model, without_guess, interruption)
      interruption.raise_if_ctrl_c()
      if not prepared.is_answered:
        return None
      prepared.summary = _summary(prepared, model)
      write_plot(plot(prepared.summary, prepared.ordered()), out)
      write_atomically(out / SUMMARY, json.dumps(prepared.summary, indent=2) + '\n')
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return prepared.summary


def _ask(
  prepared: Run,
  model: Model,
  without_guess: Sequence[Answers] | None,
  interruption: Interruption,
) -> None:
  """Asks the prompts that have no line yet, and writes theirs, until interrupted.

  Each call of the model has `batch_size` prompts in both arms, or, if the answers
  `without_guess` are known, twice as many prompts with guesses.
  """
  prompts, lines = prepared.prompts, prepared.lines
  arms = ARMS if without_guess is None else (WITH,)
  size = prepared.config.model.batch_size * len(ARMS) // len(arms)
  missing = [index for index in range(len(prompts)) if index not in lines]
  with (
    (prepared.out / PROMPTS).open('a', encoding='utf-8') as file,
    tqdm(
      desc=model.name,
      initial=len(lines),
      total=len(prompts),
      unit='prompt',
      dynamic_ncols=True,
      # A log file, unlike a terminal, would record every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
    ) as bar,
  ):
    for start in range(0, len(missing), size):
      batch, began = missing[start : start + size], time.monotonic()
      answers = iter(
        read_all(
          model,
          [prompts[index].texts[arm] for index in batch for arm in arms],
          [prompts[index].query for index in batch for _ in arms],
          prepared.wording,
          prepared.config.readouts,
        )
      )
      seconds = (time.monotonic() - began) / len(batch)
      for index in batch:
        found = {} if without_guess is None else {WITHOUT: without_guess[index]}
        found |= {arm: next(answers) for arm in arms}
        record = prompts[index].record
        lines[index] = {**record, 'arms': found, 'seconds': seconds}
      append_lines(file, [lines[index] for index in batch])
      bar.update(len(batch))
      if interruption.requested:
        return


def _summary(prepared: Run, model: Model) -> Summary:
  config, benchmark = prepared.config, prepared.benchmark
  scale = prepared.wording.scale
  guess, guesses = config.guess, prepared.guesses
  return {
    'model': model.name,
    'num_params': model.num_params,
    'engine': model.engine,
    'benchmark': config.benchmark.name,
    'data_sha256': benchmark.sha256,
    'seed': config.seed,
    'num_examples': config.prompts.num_examples,
    'context_split': config.prompts.context_split,
    'guess': {name: guess[name] for name in ('model', 'bias', 'noise', 'shuffled')},
    'guess_loss_by_split': {
      split: scale.mean_loss(guesses[split], [one.label for one in examples])
      for split, examples in benchmark.splits.items()
    },
    **summarise(prepared.ordered(), scale),
  }


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
  scale = Scale(0.0, 0.0, benchmark.classes)
  if not benchmark.classes:
    low = check_number('config.benchmark.low', section.low)
    scale = Scale(low, check_number('config.benchmark.high', section.high, above=low))
    labels = [example.label for split in benchmark.splits.values() for example in split]
    for label in labels:
      if not low <= float(label) <= scale.high:
        raise UserError(
          f'an example has the label {label}; by config.benchmark.low and high it must '
          f'be from {low:g} to {scale.high:g}'
        )
  elif section.low is not None or section.high is not None:
    raise UserError(
      'config.benchmark.low and high must be None if labels are classes, as here: '
      f'{", ".join(benchmark.classes)}'
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


def _check_lengths(prepared: Run, model: Model) -> None:
  if model.max_length is None:
    return
  more = prepared.config.readouts.max_new_tokens
  for index, prompt in enumerate(prepared.prompts):
    for text in prompt.texts.values():
      length = model.num_tokens(model.chat(text, prepared.wording.answer_prefix))
      if length + more > model.max_length:
        raise UserError(
          f'prompt {index} has {length} tokens, and {more} may follow; {model.name} '
          f'takes {model.max_length}: make config.prompts.num_examples smaller'
        )

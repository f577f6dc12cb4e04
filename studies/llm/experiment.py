"""The experiment: a language model is asked for labels, with and without guesses."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from studies.llm import of_extra
from studies.llm.benchmarks import Benchmark, read_benchmark
from studies.llm.config import EMBEDDING, Config, check_fit, validate, weights_path
from studies.llm.guesses import Guesses, LabelScale, make_guesses
from studies.llm.prompts import ARMS, WITHOUT, AskedPrompt, Wording, make_prompts
from studies.llm.readouts import label_texts, read_all
from studies.llm.report import plot
from studies.llm.summary import Line, summarise
from zoo.config.read import to_json
from zoo.core.errors import UserError
from zoo.host.files import read_json, user_path, write_atomically
from zoo.host.interruption import Interruption
from zoo.reports.plots import write_plot
from zoo.storage.rows import keep_row, read_rows
from zoo.storage.workdir import make_workdir, open_workdir

_KIND = 'language-model experiment'  # the kind of the folder, for error messages
_SUMMARY = 'summary.json'


class Sources:
  """The data, the model and the embeddings, which several runs can share.

  Each is loaded when it is first needed, and kept.
  """

  def __init__(self, config: Config, data: str | os.PathLike[str] | None):
    self._config, self._data = config, data

  @functools.cached_property
  def benchmark(self) -> Benchmark:
    """The benchmark. Raises UserError if it cannot be read."""
    data = None if self._data is None else user_path(self._data)
    return read_benchmark(self._config.benchmark.name, data)

  @functools.cached_property
  def model(self) -> Any:
    """The language model. Raises UserError if it cannot be loaded."""
    path = weights_path('model.weights', self._config.model.weights)
    return of_extra().load(path, dtype=self._config.model.dtype)

  @functools.cached_property
  def vectors(self) -> dict[str, Float[np.ndarray, ' w']]:
    """The embedding of each text. Raises UserError if the encoder cannot be read."""
    examples = itertools.chain(*self.benchmark.splits.values())
    texts = [*dict.fromkeys(text for example in examples for text in example.texts)]
    path = weights_path('encoder.weights', self._config.encoder.weights)
    return dict(zip(texts, of_extra().embed(path, texts), strict=True))


@dataclasses.dataclass
class Run:
  """A run whose config is checked, with the rows of the prompts that are answered.

  Attributes:
    config: The config of the run.
    out: The folder of the run.
    sources: The data and the models.
    wording: The wording of the prompts.
    lines: The row of each answered prompt, by index of the prompt.
    summary: The summary. None if the run is not finished.
    guesses: The guesses of all examples. Empty if the run is finished.
    prompts: The prompts. Empty if the run is finished.
  """

  config: Config
  out: pathlib.Path
  sources: Sources
  wording: Wording
  lines: dict[int, Line] = dataclasses.field(default_factory=dict)
  summary: dict[str, Any] | None = None
  guesses: Guesses = dataclasses.field(default_factory=dict)
  prompts: Sequence[AskedPrompt] = ()

  @property
  def is_answered(self) -> bool:
    """Whether all prompts have a row."""
    return len(self.lines) == self.config.prompts.num_prompts

  def ordered(self) -> list[Line]:
    """Returns the rows in the order of the prompts, once all are answered."""
    return [self.lines[index] for index in range(len(self.lines))]


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> dict[str, Any] | None:
  """Asks a language model for labels, with and without initial guesses.

  As soon as a prompt is answered, its row is added to `rows.jsonl`. At the end
  `summary.json` and figure 6 are written. Prompts that have a row are not asked again,
  so the same call resumes after an interruption.

  Args:
    config: The config of the experiment, with the fields of `all_fields`.
    out: The folder of the run.
    data: The folder of the files of the benchmark.

  Returns:
    The summary (see `summarise`). None after SIGTERM.

  Raises:
    UserError: For a mistake in the config, the data or the weights, for prompts that
      are too long for the model, and for an `out` that is damaged or has other content.
      `out` is then unchanged.
    RunError: If `out` cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  return complete(prepare(config, out, Sources(config, data)))


def prepare(config: Config, out: str | os.PathLike[str], sources: Sources) -> Run:
  """Checks a run and makes its guesses and prompts, and writes nothing.

  Args:
    config: The config of the experiment.
    out: The folder of the run.
    sources: The data and the models, which several runs can share.

  Returns:
    The run, which `complete` completes.

  Raises:
    UserError: For a mistake in the config, the data or the weights, for prompts that
      are too long for the model, and for an `out` that is damaged or has other content.
  """
  validate(config)
  out, benchmark = user_path(out), sources.benchmark
  section = config.benchmark
  check_fit(config, benchmark)
  scale = LabelScale(section.low or 0.0, section.high or 0.0, benchmark.classes)
  wording = Wording(section.instruction, tuple(section.inputs), section.label, scale)
  config = copy.deepcopy(config)
  with config.unlocked():
    # The checksum is part of the config, so that other data make another run.
    config.benchmark.sha256 = benchmark.sha256
  prepared = Run(config, out, sources, wording)
  if (out / 'config.json').is_file():
    make_workdir(out, config, _KIND)  # a folder of another run is refused early
    prepared.lines = _read_lines(out, config, prepared.wording)
    if prepared.is_answered:
      path = out / _SUMMARY
      prepared.summary = read_json(path, dict) if path.is_file() else None
  if prepared.summary is None:
    # Missing weights are refused before the slow steps.
    weights_path('model.weights', config.model.weights)
    vectors = sources.vectors if config.guess.model in EMBEDDING else {}
    prepared.guesses = make_guesses(
      config.guess, benchmark, scale, vectors, config.seed
    )
    prepared.prompts = make_prompts(config, benchmark, wording, prepared.guesses)
    _check_lengths(prepared)
  return prepared


def complete(
  prepared: Run, without_guess: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any] | None:
  """Asks the prompts of a run that have no answers yet, and writes the results.

  Args:
    prepared: The run.
    without_guess: The answers to all prompts without guesses, if they are known from a
      run that differs only in the guesses. Only prompts with guesses are then asked.

  Returns:
    The summary. None after SIGTERM.

  Raises:
    UserError: If another process uses the folder, or a file in it is damaged.
    RunError: If the folder cannot be written.
    KeyboardInterrupt: After Ctrl-C; the same call then resumes.
  """
  if prepared.summary is not None:
    return prepared.summary
  out = prepared.out
  with open_workdir(out, prepared.config, _KIND), Interruption() as interruption:
    # Another process may have asked some prompts in the meantime.
    prepared.lines = _read_lines(out, prepared.config, prepared.wording)
    _ask(prepared, without_guess, interruption)
    interruption.raise_if_ctrl_c()
    if not prepared.is_answered:
      return None
    prepared.summary = _summary(prepared)
    write_plot(plot(prepared.summary, prepared.ordered()), out)
    write_atomically(out / _SUMMARY, json.dumps(prepared.summary, indent=2) + '\n')
  return prepared.summary


def _ask(
  prepared: Run,
  without_guess: Sequence[dict[str, Any]] | None,
  interruption: Interruption,
) -> None:
  """Asks the prompts that have no row yet, in batches, and keeps their rows.

  It stops after a batch if a signal has come.
  """
  prompts, lines, model = prepared.prompts, prepared.lines, prepared.sources.model
  digest = _digest(prepared.config, prepared.wording)
  size, readouts = prepared.config.model.batch_size, prepared.config.readouts
  missing = [index for index in range(len(prompts)) if index not in lines]
  with tqdm(
    desc=model.name,
    initial=len(lines),
    total=len(prompts),
    unit='prompt',
    mininterval=1,
  ) as bar:
    for start in range(0, len(missing), size):
      batch, began = missing[start : start + size], time.monotonic()
      answers = {}
      for arm in ARMS:
        if arm == WITHOUT and without_guess is not None:
          answers[arm] = [without_guess[index] for index in batch]
          continue
        texts = [prompts[index].texts[arm] for index in batch]
        queries = [prompts[index].query for index in batch]
        answers[arm] = read_all(model, texts, queries, prepared.wording, readouts)
      seconds = (time.monotonic() - began) / len(batch)
      for place, index in enumerate(batch):
        arms = {arm: answers[arm][place] for arm in ARMS}
        lines[index] = {**prompts[index].record, 'arms': arms, 'seconds': seconds}
        keep_row(prepared.out, f'prompt={index}', digest, lines[index])
      bar.update(len(batch))
      if interruption.requested:
        return


def _summary(prepared: Run) -> dict[str, Any]:
  config, sources, scale = prepared.config, prepared.sources, prepared.wording.scale
  guess, splits = config.guess, sources.benchmark.splits
  return {
    'model': sources.model.name,
    'num_params': sources.model.num_params,
    'engine': sources.model.engine,
    'benchmark': config.benchmark.name,
    'data_sha256': sources.benchmark.sha256,
    'seed': config.seed,
    'num_examples': config.prompts.num_examples,
    'context_split': config.prompts.context_split,
    'guess': {name: guess[name] for name in ('model', 'bias', 'noise', 'shuffled')},
    'guess_loss_by_split': {
      split: sum(
        scale.loss(guess, example.label)
        for guess, example in zip(prepared.guesses[split], examples, strict=True)
      )
      / len(examples)
      for split, examples in splits.items()
    },
    **summarise(prepared.ordered(), scale),
  }


def _check_lengths(prepared: Run) -> None:
  model, more = prepared.sources.model, prepared.config.readouts.max_new_tokens
  if model.max_length is None:
    return
  for index, prompt in enumerate(prepared.prompts):
    for arm in ARMS:
      text = model.chat(prompt.texts[arm], prepared.wording.answer_prefix)
      length = model.num_tokens(text)
      if length + more > model.max_length:
        raise UserError(
          f'prompt {index} has {length} tokens, and {more} may follow; {model.name} '
          f'takes {model.max_length}: make config.prompts.num_examples smaller'
        )


def _read_lines(out: pathlib.Path, config: Config, wording: Wording) -> dict[int, Line]:
  """Reads the rows of the answered prompts, by index; raises UserError."""
  digest = _digest(config, wording)
  rows = [kept['row'] for kept in read_rows(out).values() if kept['digest'] == digest]
  return {row['index']: row for row in rows}


def _digest(config: Config, wording: Wording) -> str:
  """Returns a digest of the config, and of how answers begin and labels are written.

  Nothing else that answers depend on may change with the version of the library.
  """
  texts = [to_json(config), wording.answer_prefix, *label_texts(wording)]
  return hashlib.sha256('\n'.join(texts).encode()).hexdigest()[:8]

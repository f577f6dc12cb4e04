"""The experiment: guesses, prompts, and what a language model answers to them."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from absl import logging
from tqdm import tqdm

from zoo.config import Config
from zoo.errors import RunError, UserError
from zoo.files import write_atomically
from zoo.interruption import Interruption
from zoo.llm import guesses as guess_models
from zoo.llm.benchmarks import Benchmark, Example, read_jsonl
from zoo.llm.prompts import Wording, draw, prompt_text
from zoo.llm.readouts import Model, read_all
from zoo.llm.report import ARMS, plot, summarise
from zoo.llm.settings import check_sizes, validate, weights_path, wording_of
from zoo.mesh import make_mesh
from zoo.workdir import locked, open_workdir

PROMPTS, GUESSES, SUMMARY = 'prompts.jsonl', 'guesses.json', 'summary.json'


def run(
  config: Config,
  out: str | os.PathLike[str],
  data: str | os.PathLike[str] | None = None,
) -> dict[str, Any] | None:
  """Asks a language model with and without initial guesses; returns the summary.

  The folder `out` gets a line a prompt in `prompts.jsonl` as soon as it is answered,
  `guesses.json`, and at the end `summary.json` and figure 6. What is there is not asked
  again, so that the same call goes on after an interruption; after SIGTERM it returns
  None. `data` is the folder of the CSV files of STS-B, not needed once they are built
  into TFDS's data folder, or that of a JSONL benchmark.

  Raises UserError, with `out` as it was, for a mistake in the config, the data or the
  weights, for prompts that do not fit into the cache, and for an `out` that holds
  something else; RunError where it cannot be written.
  """
  validate(config)
  out = pathlib.Path(out).expanduser()
  benchmark = _read_benchmark(config, data)
  wording = wording_of(config, benchmark)
  check_sizes(config, benchmark)
  guess_models.check(config.guess, benchmark)
  config = _with_checksum(config, benchmark)
  if (out / 'config.json').is_file():
    open_workdir(
      out, config, 'language-model experiment'
    )  # or refuse it, before anything takes time
    if (finished := _read_json(out / SUMMARY)) is not None:
      return finished
  weights = weights_path('model.weights', config.model.weights)
  if config.guess.model != 'constant':
    weights_path('encoder.weights', config.encoder.weights)

  # Imported here as the extra `llm` is not needed to answer what is above.
  from zoo.language_models import LanguageModel

  model = LanguageModel.load(
    weights,
    dtype=config.model.dtype,
    cache_length=config.model.cache_length,
    mesh=make_mesh(config),
  )
  guesses = _read_json(out / GUESSES) or _make_guesses(config, benchmark, wording)
  prompts = Prompts(config, benchmark, wording, guesses)
  _check_lengths(prompts, model, wording, config)
  open_workdir(out, config, 'language-model experiment')
  try:
    with locked(out), Interruption() as interruption:
      write_atomically(out / GUESSES, json.dumps(guesses) + '\n')
      lines = ask(prompts, model, config, out / PROMPTS, interruption)
      if interruption.requested == signal.SIGINT:
        raise KeyboardInterrupt
      if lines is None:
        return None
      summary = {
        'model': model.name,
        'num_params': model.num_params,
        'device_kind': jax.devices()[0].device_kind,
        'num_devices': make_mesh(config).size,
        'jax_version': jax.__version__,
        **prompts.facts(),
        **summarise(lines, wording.scale),
      }
      _warn_of_silence(summary)
      _write_figure(summary, lines, out)
      write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + '\n')
  except OSError as error:
    raise RunError(f'{out} could not be written: {error}') from error
  return summary


class Prompts:
  """All prompts of a config: a pure function of seed, index, data and guesses."""

  def __init__(
    self,
    config: Config,
    benchmark: Benchmark,
    wording: Wording,
    guesses: dict[str, list[float | str]],
  ):
    self.wording = wording
    self._config, self._benchmark, self._guesses = config, benchmark, guesses
    self._contexts = benchmark.splits[config.prompts.context_split]

  def __len__(self) -> int:
    return self._config.prompts.num_prompts

  def facts(self) -> dict[str, Any]:
    """What the summary tells of the prompts, and of the guesses by split."""
    config, scale = self._config, self.wording.scale
    losses = {
      split: _mean(
        scale.loss(guess, example.label)
        for guess, example in zip(self._guesses[split], examples, strict=True)
      )
      for split, examples in self._benchmark.splits.items()
    }
    section = config.guess
    return {
      'benchmark': config.benchmark.name,
      'data_sha256': self._benchmark.sha256,
      'seed': config.seed,
      'num_examples': config.prompts.num_examples,
      'context_split': config.prompts.context_split,
      'guess': {name: section[name] for name in ('model', 'bias', 'shuffled')},
      'guess_loss_by_split': losses,
    }

  def query(self, index: int) -> Example:
    """What is asked about."""
    return self._benchmark.splits['test'][self._draw(index).query]

  def texts(self, index: int) -> list[str]:
    """What the user says in each arm."""
    drawn = self._draw(index)
    context = [self._contexts[i] for i in drawn.context]
    query = self.query(index)
    guessed = self._guesses[self._config.prompts.context_split]
    guesses = [guessed[i] for i in drawn.context]
    guesses.append(self._guesses['test'][drawn.query])
    return [
      prompt_text(self.wording, context, query),
      prompt_text(self.wording, context, query, guesses),
    ]

  def record(self, index: int) -> dict[str, Any]:
    """What a line tells of the prompt before it is asked."""
    drawn, scale = self._draw(index), self.wording.scale
    guessed = self._guesses[self._config.prompts.context_split]
    labels = [self._contexts[i].label for i in drawn.context]
    train = [example.label for example in self._benchmark.splits['train']]
    return {
      'index': index,
      'query': drawn.query,
      'context': list(drawn.context),
      'label': self.query(index).label,
      'guess': self._guesses['test'][drawn.query],
      'context_mean': scale.middle(labels or train),
      'constant': scale.middle(train),
      'context_guess_loss': _mean(
        scale.loss(guessed[i], self._contexts[i].label) for i in drawn.context
      ),
    }

  def _draw(self, index: int) -> Any:
    section = self._config.prompts
    return draw(
      self._config.seed,
      index,
      len(self._benchmark.splits['test']),
      len(self._contexts),
      section.num_examples,
    )


def ask(
  prompts: Prompts,
  model: Model,
  config: Config,
  path: pathlib.Path,
  interruption: Any,
) -> list[dict[str, Any]] | None:
  """Asks what has no line yet, and appends it; all lines, or None if told to stop."""
  lines = {line['index']: line for line in read_lines(path)}
  missing = [index for index in range(len(prompts)) if index not in lines]
  size = config.model.batch_size
  with (
    path.open('a', encoding='utf-8') as file,
    tqdm(
      desc=model.name,
      initial=len(prompts) - len(missing),
      total=len(prompts),
      unit='prompt',
      dynamic_ncols=True,
      # A log file, unlike a terminal, keeps every refresh.
      mininterval=0.2 if sys.stderr.isatty() else 10.0,
    ) as bar,
  ):
    for start in range(0, len(missing), size):
      batch = missing[start : start + size]
      began = time.monotonic()
      texts = [text for index in batch for text in prompts.texts(index)]
      queries = [prompts.query(index) for index in batch for _ in ARMS]
      answers = read_all(model, texts, queries, prompts.wording, config.readouts)
      seconds = (time.monotonic() - began) / len(batch)
      for place, index in enumerate(batch):
        arms = answers[len(ARMS) * place : len(ARMS) * (place + 1)]
        line = {
          **prompts.record(index),
          'arms': dict(zip(ARMS, arms, strict=True)),
          'seconds': seconds,
        }
        file.write(json.dumps(line, ensure_ascii=False) + '\n')
        lines[index] = line
      file.flush()
      os.fsync(file.fileno())
      bar.update(len(batch))
      if interruption.requested:
        return None
  return [lines[index] for index in range(len(prompts))]


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of a `prompts.jsonl`, without what a kill left half written at its end.

  Raises RunError for a line that is damaged otherwise.
  """
  if not path.is_file():
    return []
  content = path.read_bytes()
  whole = content.rfind(b'\n') + 1
  if whole < len(content):
    with path.open('rb+') as file:
      file.truncate(whole)
  lines = []
  for number, text in enumerate(content[:whole].splitlines(), start=1):
    try:
      line = json.loads(text)
      lines.append({**line, 'index': int(line['index'])})
    except (ValueError, TypeError, KeyError) as error:
      raise RunError(
        f'line {number} of {path} is damaged; delete that line, and its prompt is '
        'asked again'
      ) from error
  return lines


def _read_benchmark(config: Config, data: str | os.PathLike[str] | None) -> Benchmark:
  if config.benchmark.name == 'jsonl':
    if data is None:
      raise UserError(
        '--data is missing; it must name a folder with train.jsonl and test.jsonl'
      )
    return read_jsonl(pathlib.Path(data).expanduser())
  # Imported here as it takes a second, which a benchmark of one's own need not wait.
  from zoo.llm import stsb

  return stsb.load(data)


def _with_checksum(config: Config, benchmark: Benchmark) -> Config:
  """The config with that of the data: other data in a used folder is another run."""
  config = copy.deepcopy(config)
  with config.unlocked():
    config.benchmark.sha256 = benchmark.sha256
  return config


def _make_guesses(
  config: Config, benchmark: Benchmark, wording: Wording
) -> dict[str, list[float | str]]:
  from zoo.language_models.embeddings import SentenceEmbedder

  def embed(texts: Sequence[str]) -> Any:
    path = weights_path('encoder.weights', config.encoder.weights)
    return SentenceEmbedder.load(path)(texts)

  return guess_models.make_guesses(
    config.guess, benchmark, wording.scale, embed, config.seed
  )


def _check_lengths(
  prompts: Prompts, model: Model, wording: Wording, config: Config
) -> None:
  room = config.model.cache_length - config.readouts.max_new_tokens
  for index in range(len(prompts)):
    for text in prompts.texts(index):
      length = model.num_tokens(model.chat(text, wording.answer_prefix))
      if length > room:
        raise UserError(
          f'prompt {index} has {length} tokens, and {config.readouts.max_new_tokens} '
          f'may follow; config.model.cache_length is {config.model.cache_length}: make '
          'it larger, or config.prompts.num_examples smaller'
        )


def _warn_of_silence(summary: dict[str, Any]) -> None:
  for arm, readouts in summary['arms'].items():
    for readout, found in readouts.items():
      if not found['num_parsed']:
        logging.warning(
          'no answer in the arm %s, readout %s, could be parsed: %s has the answers',
          *(arm, readout, PROMPTS),
        )


def _write_figure(
  summary: dict[str, Any], lines: Sequence[dict[str, Any]], out: pathlib.Path
) -> None:
  # Matplotlib is needed at the end alone.
  from zoo.paper.reproduce import write_plot

  write_plot(plot(summary, lines), out)


def _read_json(path: pathlib.Path) -> Any:
  try:
    return json.loads(path.read_text())
  except (OSError, ValueError):
    return None


def _mean(values: Iterator[float]) -> float | None:
  listed = list(values)
  return sum(listed) / len(listed) if listed else None

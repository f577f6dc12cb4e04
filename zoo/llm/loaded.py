"""Loads the data, the language model and the sentence encoder of a run."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from zoo.core.errors import UserError
from zoo.host.files import user_path
from zoo.llm import load_model, of_extra
from zoo.llm.benchmarks import PUBLISHED, Benchmark, read_jsonl
from zoo.llm.config import EMBEDDING, Config
from zoo.llm.guesses import Guesses, Scale, make_guesses
from zoo.llm.readouts import Model


class Loaded:
  """What runs on the same data with the same model share, loaded once when needed."""

  def __init__(self, config: Config, data: str | os.PathLike[str] | None):
    self._config, self._data = config, data
    self._model: Model | None = None
    self._guesses: dict[str, Guesses] = {}  # by section

  @functools.cached_property
  def benchmark(self) -> Benchmark:
    """The benchmark; raises UserError if it cannot be read."""
    name = self._config.benchmark.name
    read = read_jsonl if name == 'jsonl' else PUBLISHED[name].read
    return read(None if self._data is None else user_path(self._data))

  def model(self, guess: Config) -> Model:
    """The language model; raises UserError if it, or the encoder, cannot be found.

    The encoder must be there if the guesses of a section `guess` need it.
    """
    path = weights_path('model.weights', self._config.model.weights)
    if guess.model in EMBEDDING:  # checked before the slow loading
      weights_path('encoder.weights', self._config.encoder.weights)
    if self._model is None:
      self._model = load_model(path, dtype=self._config.model.dtype)
    return self._model

  @functools.cached_property
  def _vectors(self) -> dict[str, Float[np.ndarray, ' w']]:
    """The embedding of each text of the benchmark."""
    rows = itertools.chain(*self.benchmark.splits.values())
    texts = [*dict.fromkeys(text for row in rows for text in row.texts)]
    path = weights_path('encoder.weights', self._config.encoder.weights)
    return dict(zip(texts, embed(path, texts), strict=True))

  def guesses(self, guess: Config, scale: Scale) -> Guesses:
    """The guesses of a section `guess`; raises as `make_guesses` does."""
    key, seed = str(guess), self._config.seed
    if key not in self._guesses:
      made = make_guesses(guess, self.benchmark, scale, self._embed, seed)
      self._guesses[key] = made
    return self._guesses[key]

  def _embed(self, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
    return np.stack([self._vectors[text] for text in texts])


def embed(path: pathlib.Path, texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
  """The embeddings of texts; raises UserError also without the extra `llm`."""
  return of_extra('embeddings').embed(path, texts)


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

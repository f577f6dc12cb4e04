"""One process of a run: trains as `launch.main` does, then writes what it drew."""

import os
import pathlib
from typing import Any

import jax
import numpy as np

from launch import cli, config_flag, main
from tests.built import task_of
from zoo.config.read import read
from zoo.core.draws import TRAIN_STREAM, stream_of
from zoo.objectives.base import sample
from zoo.sharding import make_mesh, replicate


def train_and_draw() -> None:
  main.main()
  config: Any = config_flag.get(main._CONFIG)
  mesh, task = make_mesh(read(config)), task_of(config)
  with jax.set_mesh(mesh):
    key = replicate(stream_of(config.seed, TRAIN_STREAM), mesh)

    def prompts(key: jax.Array) -> dict[str, jax.Array]:
      drawn = sample(task, jax.random.fold_in(key, 7), config.train.batch_size, False)
      return {name: part for name, part in vars(drawn).items() if part is not None}

    drawn = jax.jit(prompts)(key)
  own: dict[str, Any] = {
    f'{name} {shard.index[0].start or 0}': np.asarray(shard.data)
    for name, array in drawn.items()
    for shard in array.addressable_shards
  }
  folder = pathlib.Path(os.environ['PROMPTS'])
  np.savez(folder / f'{jax.process_index()}.npz', **own)


if __name__ == '__main__':
  cli.run(train_and_draw)

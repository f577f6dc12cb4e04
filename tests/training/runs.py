"""Small runs for tests: seconds on one core, all of the loop in them."""

import functools
import json
import pathlib
import signal
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from orbax.checkpoint import v1 as ocp

import configs
import zoo
from zoo.config.read import to_content
from zoo.config.run import Run
from zoo.sharding import replicate
from zoo.training import experiment as experiments
from zoo.training import loop, run
from zoo.training.sweeps import run as sweep_run
from zoo.training.sweeps import stacking

CONFIGS = [name for name in configs.names() if '/' not in name]
# What differs between two launches of one run.
OF_THE_LAUNCH = (
  *('steps_per_second', 'cpu_ms_per_step', 'flops_per_second', 'wall_time'),
  *('tokens_per_second', 'peak_memory_bytes', 'history'),
)


def lines_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """What a run has logged, line by line."""
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def of_each_launch(content: Mapping[str, Any]) -> dict[str, Any]:
  """A line, a summary, or a row of a table without what differs between launches."""
  return {name: value for name, value in content.items() if name not in OF_THE_LAUNCH}


def small_config(name: str = 'yq_lsa', **changes: Any) -> Any:
  """A config of d = 3, C = 4 and 12 steps; `changes` are `section__field=value`."""
  config: Any = configs.get_config(name, 'smoke')
  config.task.num_features, config.task.context_length = 3, 4
  config.train.num_steps, config.train.batch_size, config.train.log_every = 12, 16, 4
  config.checkpoint.every, config.eval.every, config.eval.num_batches = 4, 6, 2
  config.eval.num_compared = 0  # tests/training/test_comparison.py compares
  config.mesh.data = 1
  for field, value in changes.items():
    *section, leaf = field.split('__')
    node = config[section[0]] if section else config
    with config.unlocked(), node.ignore_type():
      node[leaf] = value
  return config


class Loops(zoo.models.TokenModel):
  """Loops of one matrix over the sums of the tokens so far."""

  def __init__(self, num_features, num_loops, num_outputs=1, *, rngs):
    super().__init__(num_features, num_outputs, rngs=rngs)
    self.num_loops = num_loops
    start = jax.random.normal(rngs.params(), (self.token_width, self.token_width))
    self.matrix = nnx.Param(start)

  def body(self, tokens, at):
    outputs, sums = [], jax.numpy.cumsum(tokens, axis=1)
    for _ in range(self.num_loops):
      sums = jax.numpy.tanh(sums @ self.matrix[...])
      outputs.append(sums[:, at, : self.num_outputs])
    return jax.numpy.stack(outputs) if self.num_loops > 1 else outputs[0]


def signal_at_step_4(monkeypatch: Any, number: int = signal.SIGTERM) -> None:
  """Sends a signal to this process when a run has come to step 4."""
  next_stop = loop.next_stop

  def interrupt(step: int, config: Any) -> int:
    if step == 4:
      signal.raise_signal(number)
    return next_stop(step, config)

  monkeypatch.setattr(loop, 'next_stop', interrupt)


_PROGRAMS: dict[str, Any] = {}  # that tests share
_CHECKED: set[tuple[nnx.GraphDef, str]] = set()  # models, and the tasks they are for


def compile_init(monkeypatch: Any) -> None:
  """Lets each model of a sweep be made by one program, and not by many small ones."""

  def create(config: Run, task: Any, key: jax.Array, weights: Any = None) -> Any:
    sizes = config.task.name, task.num_features, task.context_length
    text = f'create {config.model} {config.optimizer} {config.mesh} {sizes}'
    if text not in _PROGRAMS:
      made = functools.partial(experiments.create, config, task)
      _PROGRAMS[text] = nnx.jit(made)
    return _PROGRAMS[text](key, weights)

  monkeypatch.setattr(stacking, 'create', create)


def is_key(leaf: Any) -> bool:
  """Whether a leaf holds random keys of JAX."""
  return jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)


# In what the configs of one program differ: where a run starts, logs and saves.
_NOT_COMPILED = {
  'checkpoint': ('every', 'every_minutes', 'keep', 'steps'),
  'eval': ('every', 'num_compared'),
  'mesh': ('heartbeat_timeout', 'start_timeout'),
  'train': (
    *('init_from', 'init_from_digest', 'init_from_other', 'init_from_step'),
    'log_every',
  ),
}


def share_programs(monkeypatch: Any) -> None:
  """Lets runs and sweeps of one config, but for its checkpoints, be compiled once.

  For tests of what is written, with classes that nothing changes. A model of equal
  structure is checked once, too; each launch makes its state, as for users.
  """
  compile_init(monkeypatch)
  compile_training, check_agreement = run.compile_training, run.check_agreement

  def checked(model: Any, task: Any, batch_size: int) -> None:
    which = nnx.graphdef(model), f'{task} {batch_size}'
    if which not in _CHECKED:
      check_agreement(model, task, batch_size)
      _CHECKED.add(which)

  def shared(training: Any) -> Any:
    experiment = training.experiment
    config = {**to_content(experiment.config), 'seed': None}
    for section, fields in _NOT_COMPILED.items():
      config[section] = {k: v for k, v in config[section].items() if k not in fields}
    evaluation, inputs = training.evaluation, training.inputs
    if inputs.learning_rate is not None:  # It is an input, as the task is.
      del config['optimizer']['learning_rate']
    measured_on, structure = jax.tree.flatten(evaluation.inputs)
    kinds = [jnp.asarray(leaf).tolist() for leaf in measured_on if not is_key(leaf)]
    shapes = jax.tree.map(jnp.shape, inputs)
    text = f'{jax.dtypes.canonicalize_dtype(float)} {json.dumps(config)} {structure}'
    text += f' {kinds} {shapes} {training.key.shape}'
    if text not in _PROGRAMS:
      _PROGRAMS[text] = compile_training(training)
    compiled = _PROGRAMS[text]
    key, inputs = replicate((training.key, inputs), experiment.mesh)
    own = {'experiment': experiment, 'init': training.init}
    return compiled._replace(**own, key=key, inputs=inputs)

  monkeypatch.setattr(run, 'check_agreement', checked)
  for module in (run, sweep_run):
    monkeypatch.setattr(module, 'compile_training', shared)


def saved_arrays(workdir: str | pathlib.Path, step: int) -> dict[str, np.ndarray]:
  """All arrays of a saved step, model and optimizer, by path; read with Orbax alone."""
  path = f'{workdir}/checkpoints/{step}'
  path = path if path.startswith('gs:') else str(pathlib.Path(path).resolve())
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = {
    item: jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
      ocp.metadata(path, checkpointable_name=item).metadata,
    )
    for item in ('model', 'optimizer')
  }
  items = ocp.load_checkpointables(path, abstract)
  leaves, _ = jax.tree_util.tree_flatten_with_path(items)
  return {
    jax.tree_util.keystr(path): np.asarray(
      jax.random.key_data(leaf)
      if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
      else leaf
    )
    for path, leaf in leaves
  }


def assert_close_arrays(
  arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
  """Fails unless both hold the same arrays but for rounding.

  Stacked, sums are added in another order: a gradient differs by some 1e-6 of its size,
  and what Adam makes of it moves a weight by 5e-3 a step at most, 12 times.
  """
  assert arrays.keys() == expected.keys()
  for path, array in arrays.items():
    assert array.shape == expected[path].shape, path
    np.testing.assert_allclose(
      array, expected[path], rtol=1e-4, atol=1e-5, err_msg=path
    )


def assert_same_bits(
  arrays: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> None:
  """Fails unless both hold the same arrays, bit for bit."""
  assert arrays.keys() == expected.keys()
  assert arrays
  for path, array in arrays.items():
    assert array.dtype == expected[path].dtype, path
    assert array.tobytes() == expected[path].tobytes(), path

"""Commands called in the process of the tests, which saves the time of imports."""

import contextlib
import functools
import importlib
import os
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest
from absl import app, flags
from absl import logging as absl_logging

from launch import cli
from tests.launch.processes import ROOT, environment

_MODULE = """
import jax.numpy as jnp
from flax import nnx, struct
import zoo

@zoo.register_model('own_model')
class OwnModel(nnx.Module):
  def __init__(self, num_features, *, rngs):
    self.w = nnx.Param(jnp.ones(num_features))
  def __call__(self, prompt):
    return prompt.x_query @ self.w[...]

@zoo.register_task('two_outputs')
@struct.dataclass
class TwoOutputs(zoo.tasks.FunctionClass):
  num_features: int = struct.field(pytree_node=False, default=3)
  context_length: int = struct.field(pytree_node=False, default=4)
  num_outputs = 2
  def sample_function(self, key):
    return jnp.ones(())
  def evaluate(self, function, x):
    return x[:, :2]

"""
_SETS_A_FIELD = """
import configs

def get_config():
  config = configs.get_config('yq_lsa', 'smoke')
  config.{}
  return config
"""
_CONFIG = """
from configs import common

def get_config(variant=''):
  config = common.get_config()
  config.model.name = 'own_model'
  return common.with_variant(config, variant)
"""


class Answer(NamedTuple):
  """What a command said before it ended with an exit code."""

  code: int
  out: str
  err: str


@pytest.fixture
def call(monkeypatch, capsys, unchecked):
  """Calls a command, of `launch` if no package is named, with its flags alone."""
  verbosity = absl_logging.get_verbosity()

  def call(name: str, *arguments: str) -> Answer:
    forget_commands()
    command = importlib.import_module(name if '.' in name else f'launch.{name}')
    # The tests have their own cache of programs.
    argv = [f'launch.{name}', '--nocompilation_cache', *arguments]
    monkeypatch.setattr(sys, 'argv', argv)
    capsys.readouterr()
    code: object = 0
    try:
      takes_names = name in ('headlines', 'benchmarks.checkpoints')
      called = functools.partial(cli.call, command.main, takes_names=takes_names)
      app.run(called, flags_parser=cli.parse)
    except SystemExit as ended:
      code = ended.code or 0
    assert isinstance(code, int), code
    return Answer(code, *capsys.readouterr())

  yield call
  forget_commands()
  absl_logging.set_verbosity(verbosity)


def forget_commands() -> None:
  """Lets the next command define its flags, as in a process of its own."""
  shared = 'launch.cli', 'launch.config_flag'
  for name, defined in flags.FLAGS.flags_by_module_dict().items():
    if name.startswith(('launch.', 'benchmarks.')) and name not in shared:
      sys.modules.pop(name, None)
      for flag in [*defined]:
        delattr(flags.FLAGS, flag.name)
  sys.modules.pop('config_config', None)  # which ml_collections would load anew into
  # Fields of a config, which belong to no module.
  for name in [name for name in flags.FLAGS if name.startswith('config')]:
    delattr(flags.FLAGS, name)


@pytest.fixture
def folder(tmp_path, monkeypatch, register):
  """A working folder with a file that is taken, classes of one's own, and configs."""
  files = {
    'own_classes_under_test': _MODULE,
    'broken_under_test': '1 / 0',
    'own_model': _CONFIG,
    'misspelt_field': _SETS_A_FIELD.format('train.batchsize = 32'),
    'dotted_key': _SETS_A_FIELD.format("optimizer.scales = {'layers.0.value': 2.0}"),
    'other_type': _SETS_A_FIELD.format("train.num_steps = 'many'"),
  }
  for name, text in files.items():
    (tmp_path / f'{name}.py').write_text(text)
  (tmp_path / 'taken').write_text('mine')
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  yield tmp_path
  for name in files:
    sys.modules.pop(name, None)


@pytest.fixture
def start(cache):
  """Starts a command as a process; none is left behind."""
  with contextlib.ExitStack() as stack:

    def start(*words: str) -> subprocess.Popen:
      process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what it has started ends with it
      )
      stack.enter_context(process)
      stack.callback(_kill, process)
      return process

    yield start


def _kill(process: subprocess.Popen) -> None:
  if process.poll() is None:
    os.killpg(process.pid, signal.SIGKILL)

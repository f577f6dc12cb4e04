"""An error in a user's own code: its traceback, exit code 1, and nothing is written."""

import importlib
import re
import sys
import traceback

import pytest
from flax import nnx

import configs
import studies
import zoo
from tests.launch.processes import ROOT, launch
from tests.marks import mostly_slow

_HEAD = """
import jax, jax.numpy as jnp, optax, zoo
from flax import nnx, struct
"""
_MODEL = (
  _HEAD
  + """
@zoo.register_model('own_bug')
class OwnBug(nnx.Module):
  def __init__(self, num_features, size=1, *, rngs):
    self.w = nnx.Param(jnp.ones(num_features))
    CONSTRUCTOR
  def __call__(self, prompt):
    CALL
    return prompt.x_query @ self.w[...]
"""
)
_TASK = (
  _HEAD
  + """
@zoo.register_task('own_bug')
@struct.dataclass
class OwnBug(zoo.tasks.FunctionClass):
  num_features: int = struct.field(pytree_node=False, default=3)
  context_length: int = struct.field(pytree_node=False, default=4)
  def sample_function(self, key):
    return {}['bug']  # here
  def evaluate(self, function, x):
    return x[:, 0]
"""
)
_MIXER = (
  _HEAD
  + """
@zoo.register_mixer('own_bug')
class OwnBug(zoo.mixers.Mixer):
  causal = True
  def __init__(self, width, *, rngs):
    self.out = nnx.Linear(width, width, rngs=rngs)
  def __call__(self, tokens):
    return helper(tokens)

def helper(tokens):
  return tokens @ jnp.ones((3, 5))  # here
"""
)
_OPTIMIZER = (
  _HEAD
  + """
@zoo.register_optimizer('own_bug')
def own(rate):
  return optax.sgd(rate + 1.0)  # here
"""
)
_CURRICULUM = (
  _HEAD
  + """
@zoo.register_curriculum('own_bug')
def own(step):
  return zoo.training.Stage(examples=int(step))  # here
"""
)
_SMOKE = '--config=configs/yq_lsa.py:smoke'
_OWN_MODEL = '--config=own_bug.py:smoke'
_CONFIG = """
from configs import common
def get_config(variant=''):
  config = common.get_config()
  config.model.name = 'own_bug'
  config.model.size = 1
  return common.with_variant(config, variant)
"""


def _model(constructor='pass', call='pass'):
  return _MODEL.replace('CONSTRUCTOR', constructor).replace('CALL', call)


# Each place has the file, the other flags, the error, and what its notes say.
_PLACES = {
  'import': ('1 / 0  # here', [_SMOKE], ZeroDivisionError, ''),
  'import of a missing package': (
    'import no_package  # here',
    [_SMOKE],
    ModuleNotFoundError,
    '',
  ),
  'syntax': ('def own(:  # here', [_SMOKE], SyntaxError, ''),
  'config': (
    "def get_config():\n  return int('a')  # here",
    ['--config=own_bug_under_test.py'],
    ValueError,
    '',
  ),
  'config of language models': (
    'from configs.llm import smollm2\n'
    'def get_config():\n'
    '  return smollm2.get_config() / 2  # here',
    ['llm', '--config=own_bug_under_test.py', '--data=.'],
    TypeError,
    '',
  ),
  'syntax of a config': (
    'def get_config(:  # here',
    ['--config=own_bug_under_test.py'],
    SyntaxError,
    '',
  ),
  'constructor': (
    _model(constructor="self.b = 'a' + size  # here"),
    [_OWN_MODEL],
    TypeError,
    '',
  ),
  'model': (
    _model(call='prompt.x @ jnp.ones((1, 2))  # here'),
    [_OWN_MODEL],
    TypeError,
    'OwnBug(prompt) failed',
  ),
  'model of few examples': (
    _model(call='prompt.y[:, 0]  # here'),
    [_OWN_MODEL],
    IndexError,
    'OwnBug(prompt) failed on a prompt with 0 examples',
  ),
  'task': (
    _TASK,
    [f'{_SMOKE},task=own_bug'],
    KeyError,
    'OwnBug.sample(key, 64) failed',
  ),
  'mixer': (
    _MIXER,
    ['--config=configs/transformer.py:smoke', '--config.model.mixer=own_bug'],
    TypeError,
    'OwnBug(tokens) failed',
  ),
  'optimizer': (
    _OPTIMIZER,
    [_SMOKE, '--config.optimizer.name=own_bug'],
    TypeError,
    '',
  ),
  'curriculum': (
    _CURRICULUM,
    ['--config=configs/transformer.py:smoke', '--config.curriculum.name=own_bug'],
    TypeError,
    '',
  ),
}


@pytest.fixture
def own(tmp_path, monkeypatch, register):
  """Writes the module of a user, in whose folder commands are called."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'dont_write_bytecode', True)
  path = tmp_path / 'own_bug_under_test.py'
  (tmp_path / 'own_bug.py').write_text(_CONFIG)

  def write(text):
    path.write_text(text)
    return path

  yield write
  sys.modules.pop('own_bug_under_test', None)


def assert_shown(error, path, note=''):
  """The traceback must end in the line of the user that says `here`, and in JAX."""
  text = ''.join(traceback.format_exception(error))
  lines = path.read_text().splitlines()
  number = next(i for i, line in enumerate(lines, start=1) if line.endswith('# here'))
  _, place, rest = text.rpartition(f'{path.name}", line {number}')
  assert place, text
  # A virtual environment may be in the repository.
  assert not re.search(f'"{re.escape(str(ROOT))}/(zoo|launch|configs|studies)/', rest)
  assert note in text


@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.parametrize(
  'place',
  mostly_slow(
    [place for place in _PLACES if place not in ('mixer', 'model of few examples')],
    _PLACES,
  ),
)
def test_an_error_in_own_code_keeps_its_traceback(call, own, place, tmp_path):
  text, flags, kind, note = _PLACES[place]
  path = own(text)
  if 'def get_config' not in text:
    flags = ['--import=own_bug_under_test', *flags]
  if flags[0] != 'llm':
    flags = ['main', *flags, '--workdir=run']
  with pytest.raises(kind) as info:
    call(*flags)
  assert not isinstance(info.value, zoo.UserError)
  assert_shown(info.value, path, note)
  assert {*tmp_path.iterdir()} == {path, path.with_name('own_bug.py')}


@pytest.mark.usefixtures('promotion_that_optax_needs')
def test_a_sweep_of_a_model_that_fails_keeps_its_traceback(call, own, tmp_path):
  path = own(_model(call='1 / 0  # here'))
  with pytest.raises(ZeroDivisionError) as info:
    call(
      *('sweep', '--import=own_bug_under_test', _OWN_MODEL, '--workdir=sweep'),
      '--sweep=seed=0,1',
    )
  assert_shown(info.value, path)
  assert {*tmp_path.iterdir()} == {path, path.with_name('own_bug.py')}


def test_a_module_may_end_the_program_or_say_itself_what_is_wrong(call, own):
  own('raise SystemExit(3)')
  assert call('main', '--import=own_bug_under_test', _SMOKE).code == 3
  own("import zoo\nraise zoo.UserError('size is 3; it must be even')")
  answer = call('main', '--import=own_bug_under_test', _SMOKE)
  assert (answer.code, answer.err) == (2, 'error: size is 3; it must be even\n')
  own("import zoo\nraise zoo.RunError('the data are gone')")
  answer = call('main', '--import=own_bug_under_test', _SMOKE)
  assert (answer.code, answer.err) == (1, 'error: the data are gone\n')


def test_what_a_constructor_does_not_take_is_one_line(call, own, tmp_path):
  path = own(_model())
  answer = call(
    *('main', '--import=own_bug_under_test', _OWN_MODEL),
    *('--config.model.sise=2', '--workdir=run'),
  )
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert "did you mean 'config.model.size'" in line
  assert {*tmp_path.iterdir()} == {path, path.with_name('own_bug.py')}


_COMMON = 'from configs import common\ndef get_config():\n  c = common.get_config()\n'


@pytest.mark.parametrize(
  ('text', 'variant', 'said'),
  [
    ('config = 3', ':variant', 'own_bug_under_test.py defines no get_config()'),
    (
      'def get_config():\n  pass',
      ':variant',
      'arguments but 1 was given; leave out the colon',
    ),
    ('def get_config(variant):\n  pass', '', '; name a variant, --config=FILE:VARIANT'),
    (
      f'{_COMMON}  c.optimiser.learning_rate = 0.1\n  return c',
      '',
      "line 4: unknown field 'optimiser'; its section has checkpoint, curriculum, ",
    ),
  ],
)
def test_a_file_that_is_no_config_is_one_line(call, own, text, variant, said):
  path = own(text)
  answer = call('main', f'--config={path}{variant}')
  assert answer.code == 2
  (line,) = answer.err.splitlines()
  assert said in line


def test_a_measure_of_a_study_keeps_its_traceback(own, tmp_path):
  """Also of an OSError, which is not one of writing the results."""
  path = own(
    'import studies\n'
    'def measure(train):\n'
    "  open('no_table.csv')  # here\n"
    "study = studies.Study(name='own', statement='', measure=measure)\n"
  )
  module = importlib.import_module('own_bug_under_test')

  study = module.study
  with pytest.raises(FileNotFoundError) as info:
    studies.run([study], configs.get_config, tmp_path / 'out')
  assert_shown(info.value, path)
  names = [path.name for path in (tmp_path / 'out').iterdir()]
  assert all(name.startswith('.') for name in names), names  # locks alone


def test_a_saved_model_whose_class_fails_keeps_its_traceback(own, tmp_path):
  own(_model())
  module = importlib.import_module('own_bug_under_test')

  model = module.OwnBug(3, rngs=nnx.Rngs(0))
  task = {'name': 'linear_regression', 'num_features': 3, 'context_length': 4}
  config = {'model': {'name': 'own_bug'}, 'task': task}
  zoo.save(model, tmp_path / 'saved', config)
  path = own(_model(constructor='1 / 0  # here') + '\n')
  importlib.invalidate_caches()
  importlib.reload(module)
  with pytest.raises(ZeroDivisionError) as info:
    zoo.load(tmp_path / 'saved')
  assert_shown(info.value, path)


@pytest.mark.slow
def test_in_a_process_it_is_printed_with_exit_code_1(own, cache, tmp_path):
  path = own(_model(call='helper(prompt)') + '\ndef helper(prompt): 1 / 0  # here\n')
  answer = launch(
    *('--import=own_bug_under_test', _OWN_MODEL, '--workdir=run'),
    cache=cache,
    cwd=tmp_path,
  )
  assert answer.returncode == 1
  assert f'File "{path}", line' in answer.stderr
  assert 'ZeroDivisionError: division by zero' in answer.stderr
  assert not (tmp_path / 'run').exists()

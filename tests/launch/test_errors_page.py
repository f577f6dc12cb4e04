"""The page of error messages quotes what users really meet, word for word."""

import pathlib
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct

import zoo
from tests.launch.processes import ROOT
from tests.training.runs import small_config
from zoo.core import registry
from zoo.core.errors import in_one_line
from zoo.estimators.baselines import Zero
from zoo.host import processes
from zoo.storage.workdir import occupied
from zoo.tasks.base import dot

_PAGE = ROOT / 'docs' / 'errors.md'
_SHORT: Any = {
  'train__num_steps': 2,
  'train__log_every': 1,
  'checkpoint__every': 1,
  'checkpoint__keep': 2,
}
_DIVERGES: Any = {
  'optimizer__name': 'sgd',
  'optimizer__clip_norm': None,
  'optimizer__schedule': 'constant',
}
_YQ_LSA = 'main --config=configs/yq_lsa.py:smoke'
# Command lines of messages whose page does not begin with one.
_LINES = {
  'it must be divisible by the data axis of the mesh': (
    f'{_YQ_LSA} --config.mesh.data=7'
  ),
  'config.mesh is data': f'{_YQ_LSA} --config.mesh.data=99',
  'must be divisible by config.mesh.model': (
    'main --config=configs/transformer.py:smoke --config.mesh.data=1 '
    '--config.mesh.model=3'
  ),
}
_CALLS: dict[str, Callable[[], object]] = {}


def _messages() -> dict[str, str]:
  """The block of each heading of the page, on one line."""
  text = _PAGE.read_text(encoding='utf-8')
  sections = re.findall(r'^### `([^\n]+)`\n\n```text\n(.*?)```', text, re.M | re.S)
  assert len(sections) == text.count('\n### ')
  assert len(dict(sections)) == len(sections)
  return {heading: in_one_line(block, None) for heading, block in sections}


_MESSAGES = _messages()


def _raised_by(heading: str) -> Callable[[Callable[[], object]], object]:
  def keep(call: Callable[[], object]) -> Callable[[], object]:
    _CALLS[heading] = call
    return call

  return keep


def _task(d: int = 2, c: int = 4, **fields: Any) -> Any:
  name = 'linear_regression'
  return zoo.create_task(name, num_features=d, context_length=c, **fields)


def _prompt(seed: int = 0, size: int = 4, **fields: Any) -> zoo.Prompt:
  return _task(**fields).sample(jax.random.key(seed), size)


def _transformer(**fields: Any) -> zoo.models.Transformer:
  return zoo.models.Transformer(
    2, 4, num_layers=1, width=8, num_heads=2, rngs=nnx.Rngs(0), **fields
  )


def _yq_lsa() -> Any:
  return zoo.create_model('yq_lsa', num_features=2, rngs=nnx.Rngs(0))


# Models, tasks and mixers of one's own.


class _OwnModel(nnx.Module):
  def __init__(self):
    self.w = nnx.Param(jnp.ones(2))
    self.calls = nnx.Variable(jnp.zeros(()))

  def __call__(self, prompt: zoo.Prompt) -> jax.Array:
    return prompt.x_query @ self.w[...]


@_raised_by('is a class, not a predictor')
def _():
  class MyModel(_OwnModel):
    pass

  made_later: Any = MyModel
  zoo.check_model(made_later, _task())


@_raised_by('reads the target')
def _():
  class MyModel(_OwnModel):
    def __call__(self, prompt):
      return prompt.y_query * jnp.sum(self.w[...])

  zoo.check_model(MyModel(), _task())


@_raised_by('looks ahead of example')
def _():
  class MyModel(_OwnModel):
    def predictions(self, prompt):
      x = jnp.concatenate([prompt.x, prompt.x_query[:, None]], axis=1)
      return x @ self.w[...] + prompt.y.sum(axis=1)[:, None]

    def __call__(self, prompt):
      return self.predictions(prompt)[:, -1]

  zoo.check_model(MyModel(), _task())


@_raised_by('changes its variable')
def _():
  class MyModel(_OwnModel):
    def __call__(self, prompt):
      self.calls[...] += 1
      return super().__call__(prompt)

  zoo.check_model(MyModel(), _task())


@_raised_by('has the shape')
def _():
  class MyModel(_OwnModel):
    def __call__(self, prompt):
      return prompt.x_query * self.w[...][None]

  zoo.check_model(MyModel(), _task())


def _size(default: int) -> Any:
  return struct.field(pytree_node=False, default=default)


@struct.dataclass
class _Own(zoo.tasks.FunctionClass):
  num_features: int = _size(2)
  context_length: int = _size(4)

  def sample_function(self, key):
    return jax.random.normal(key, (2,))

  def evaluate(self, function, x):
    return dot(x, function[None])


@_raised_by('is not a dataclass')
def _():
  class MyTask(_Own):
    pass

  zoo.register_task('mine')(MyTask)


@_raised_by('lacks the method')
def _():
  @struct.dataclass
  class MyTask(zoo.tasks.FunctionClass):
    num_features: int = _size(2)
    context_length: int = _size(4)
    sample_function = _Own.sample_function

  zoo.register_task('mine')(MyTask)


@_raised_by('which is not given')
def _():
  zoo.create_model('transformer', num_features=2, rngs=nnx.Rngs(0))


@_raised_by('lacks the field')
def _():
  @struct.dataclass
  class MyTask(zoo.tasks.FunctionClass):
    num_features: int = _size(2)
    sample_function = _Own.sample_function
    evaluate = _Own.evaluate

  zoo.register_task('mine')(MyTask)


@_raised_by('is worse than')
def _():
  @struct.dataclass
  class MyTask(_Own):
    def baselines(self):
      return {
        'bayes': Zero(),
        'ridge': zoo.estimators.ridge(np.zeros(2), 0.1),
      }

  zoo.check_task(MyTask())


@_raised_by('returns the shape')
def _():
  class MyMixer(zoo.mixers.Mixer):
    def __call__(self, tokens):
      return tokens[..., :2]

  jax.eval_shape(_transformer(mixer=MyMixer), _prompt(size=2))


@_raised_by('the model is for')
def _():
  jax.eval_shape(_transformer(), _prompt(d=5))


@_raised_by('the model has places for')
def _():
  jax.eval_shape(_transformer(positions='learned'), _prompt(c=9))


# Folders, loading and saving.


def _again(**changes: Any) -> None:
  zoo.train(small_config(**_SHORT | changes), 'runs/a')


@_raised_by('belongs to another config')
def _():
  _again(task__noise_std=0.5)


@_raised_by('a run may be given more steps, not fewer')
def _():
  _again(train__num_steps=1)


@_raised_by('is the workdir of a sweep')
def _():
  pathlib.Path('runs/s/points').mkdir(parents=True)
  zoo.train(small_config(**_SHORT), 'runs/s')


@_raised_by('is in use')
def _():
  config = small_config(**_SHORT)
  with occupied(pathlib.Path('runs/a'), config, 'run'):
    _again()


@_raised_by('whose weights do not fit the model')
def _():
  changes: Any = {'model__num_heads': 2, 'train__init_from': 'runs/a'}
  zoo.train(small_config(**_SHORT | changes), 'runs/b')


@_raised_by('has no step')
def _():
  zoo.load('runs/a', step=7)


@_raised_by('is damaged')
def _():
  for path in pathlib.Path('runs/a/checkpoints/2').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  zoo.load('runs/a')


_CONFIG = {
  'model': {'name': 'yq_lsa'},
  'task': {'name': 'linear_regression', 'num_features': 2, 'context_length': 4},
}


@_raised_by('which is not registered')
def _():
  @zoo.register_model('my_model')
  class MyModel(_OwnModel):
    def __init__(self, num_features, *, rngs):
      super().__init__()

  config = _CONFIG | {'model': {'name': 'my_model'}}
  zoo.save(MyModel(2, rngs=nnx.Rngs(0)), 'saved', config)
  registry.MODELS.pop('my_model')
  zoo.load('saved')


@_raised_by('exists already')
def _():
  zoo.save(_yq_lsa(), 'mine', _CONFIG)


@_raised_by('it must be a file NAME.safetensors')
def _():
  zoo.export(zoo.load('runs/a'), 'model.bin')


@_raised_by('the config makes another model')
def _():
  config = _CONFIG | {'model': {'name': 'yq_lsa', 'num_heads': 2}}
  zoo.save(_yq_lsa(), 'saved', config)


# Training.


@_raised_by('is not finite')
def _():
  changes: Any = {'optimizer__learning_rate': 1e30, 'train__num_steps': 4}
  zoo.train(small_config(**_SHORT | _DIVERGES | changes), 'runs/d')


@_raised_by('points stopped being finite')
def _():
  config = small_config(**_SHORT | _DIVERGES | {'train__num_steps': 4})
  points = zoo.training.grid({'optimizer.learning_rate': [0.001, 1e30]})
  zoo.training.sweep(config, points, 'runs/s')


@_raised_by('is gone, since training has gone on')
def _():
  config = small_config(train__num_steps=2, train__log_every=1)
  first, *_ = zoo.training_run(config, 'runs/e')
  assert first.model


@_raised_by('it must be a dict of numbers by name')
def _():
  @zoo.register_metric('size')
  def size(model, task, key):
    return jnp.sum(model.w_p[...])

  zoo.train(small_config(**_SHORT, eval__metrics=('size',)), 'runs/m')


# Probing and interventions.


@_raised_by('unknown site')
def _():
  zoo.probing.capture(_transformer(), _prompt(), ['layer.0.tokens'])


@_raised_by('is one call of')
def _():
  zoo.probing.capture(_transformer(), _prompt(), ['layers.0.tokens@2'])


@_raised_by('has no site')
def _():
  class MyModel(_OwnModel):
    pass

  zoo.probing.capture(MyModel(), _prompt(), ['layers.0.tokens'])


@_raised_by('has no tap of the kind')
def _():
  class MyModel(_OwnModel):
    pass

  zoo.probing.attribution(MyModel(), _prompt())


@_raised_by('does not reach the prediction')
def _():
  # No later layer reads the other tokens, so the query's token alone is read.
  edits = {'layers.0.network.out': zoo.probing.Zero(np.s_[:, 0])}
  zoo.probing.edited(_transformer(), edits, _prompt())


@_raised_by('the value of Set at the site')
def _():
  edits = {'layers.0.tokens': zoo.probing.Set(np.zeros(7))}
  zoo.probing.edited(_transformer(), edits, _prompt())


@_raised_by('of the corrupt prompts has the shape')
def _():
  clean, corrupt = _prompt(), _prompt(1, c=3)
  zoo.probing.effects(_transformer(), _task(), clean, corrupt)


@_raised_by('there is one prompt')
def _():
  clean, corrupt = _prompt(size=1), _prompt(1, size=1)
  zoo.probing.effects(_transformer(), _task(), clean, corrupt)


@_raised_by('has no separable heads')
def _():
  zoo.probing.heads(_transformer(), _task())


@_raised_by('has no layers to read')
def _():
  zoo.probing.lens(_yq_lsa(), _task())


# Theory.


@_raised_by('has no learning rule, which this function needs')
def _():
  zoo.theory.exact_risk(_transformer(), _task())


@_raised_by('exact theory covers LinearRegression')
def _():
  zoo.theory.exact_risk(_yq_lsa(), zoo.create_task('sinusoid'))


@_raised_by('the risk is known only to lie between')
def _():
  task = _task(noise_std=0.3)
  zoo.theory.exact_risk(zoo.estimators.bayes(task), task)


@_raised_by('no exact form is known for it')
def _():
  model = zoo.probing.edited(_yq_lsa(), {'update': zoo.probing.Zero()})
  zoo.theory.exact_risk(model, _task())


@_raised_by('the risk of deep_lsa is known exactly only with')
def _():
  model = zoo.create_model('deep_lsa', num_features=2, num_layers=2, rngs=nnx.Rngs(0))
  zoo.theory.exact_risk(model, _task())


# Tables and scikit-learn.


def _tabular() -> Any:
  model = zoo.create_model('tabular', num_features=32, width=8, rngs=nnx.Rngs(0))
  return model, zoo.create_task('tabular')


_ROWS = np.random.default_rng(0).normal(size=(24, 3))


@_raised_by('y has 12 classes')
def _():
  zoo.Classifier(*_tabular()).fit(_ROWS, np.arange(24) % 12)


@_raised_by('X has 300 features')
def _():
  zoo.Regressor(*_tabular()).fit(np.ones((24, 300)), _ROWS[:, 0])


@_raised_by('X has text')
def _():
  zoo.Regressor(*_tabular()).fit([['oak', 1], ['elm', 2]], [1.0, 2.0])


@_raised_by('is a model without its task')
def _():
  zoo.Regressor(_transformer()).fit(_ROWS, _ROWS[:, 0])


@_raised_by('zoo.Classifier predicts classes, and zoo.Regressor')
def _():
  zoo.Classifier(_yq_lsa(), _task()).fit(_ROWS[:, :2], np.arange(24) % 2)


@_raised_by('the prompt has 12 classes')
def _():
  task = zoo.create_task('gaussian_clusters', num_classes=12)
  jax.eval_shape(_tabular()[0], task.sample(jax.random.key(0), 2))


# Several processes.


@_raised_by('could not join the others')
def _():
  processes._wait_for('127.0.0.1:1', 0, 'process 1 of 4')


# The page.


def test_the_page_has_the_words_of_each_message_as_its_heading():
  assert len(_MESSAGES) >= 25
  for heading, said in _MESSAGES.items():
    assert heading in said
    assert said.startswith('$ ') or heading in {*_LINES, *_CALLS}, heading
  commands = {name for name, said in _MESSAGES.items() if said.startswith('$ ')}
  assert {*_LINES, *_CALLS} == _MESSAGES.keys() - commands


def test_the_index_of_the_page_has_each_heading_in_alphabetical_order():
  text = _PAGE.read_text(encoding='utf-8')
  listed = re.findall(r'\[`([^`]+)`\]\(#([^)]*)\)', text.partition('\n### ')[0])
  names = [name for name, _ in listed]
  assert {*names} == _MESSAGES.keys()
  assert len(names) == len(_MESSAGES)
  assert names == sorted(names, key=lambda name: re.sub(r'[^a-z\d ]', '', name.lower()))
  for name, anchor in listed:
    assert anchor == re.sub(r'[^\w\- ]', '', name.lower()).replace(' ', '-')


def _as_pattern(message: str) -> str:
  """The pattern of what is quoted; … stands for any text."""
  return '.*'.join(map(re.escape, message.split('…')))


@pytest.fixture(scope='module')
def run_a(tmp_path_factory):
  """A run of two steps, with a checkpoint of each."""
  folder = tmp_path_factory.mktemp('trained') / 'a'
  with jax.numpy_dtype_promotion('standard'):
    zoo.train(small_config(**_SHORT), folder)
  return folder


@pytest.fixture
def place(folder, run_a, monkeypatch):
  """The working folder of a user: a run, a file of their own, and a table."""
  shutil.copytree(run_a, folder / 'runs' / 'a')
  (folder / 'mine').mkdir()
  (folder / 'mine' / 'notes.txt').write_text('mine')
  (folder / 'houses.csv').write_text('size,price\n1,2\n3,4\n')
  (folder / 'my_model.py').write_text('')
  # As on a machine without the extra.
  for name in [*sys.modules]:
    if name.split('.')[0] == 'gcsfs' or name == 'zoo.host.gcs':
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr(zoo.host, 'gcs', raising=False)
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  return folder


@pytest.mark.usefixtures('promotion_that_optax_needs', 'place')
@pytest.mark.parametrize('heading', _MESSAGES)
def test_a_message_of_the_page_is_what_is_said(heading, call):
  said = _MESSAGES[heading]
  if heading in _CALLS:
    with pytest.raises((zoo.UserError, zoo.RunError)) as info:
      _CALLS[heading]()
    assert re.fullmatch(_as_pattern(said), str(info.value)), info.value
    return
  line = _LINES.get(heading)
  if line is None:
    line, said = said.removeprefix('$ python -m launch.').split(' error: ')
  else:
    said = said.removeprefix('error: ')
  answer = call(*line.split())
  assert answer.code in (1, 2)
  assert re.fullmatch(f'error: {_as_pattern(said)}\n', answer.err), answer.err


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs', 'place', 'register', 'unchecked')
def test_the_code_of_the_page_prints_what_it_says(capsys):
  text = _PAGE.read_text(encoding='utf-8')
  programs = re.findall(r'```python\n(.*?)```(?:\n\n```\n(.*?)```)?', text, re.DOTALL)
  assert len(programs) == 4
  for code, said in programs:
    exec(compile(code, 'errors.md', 'exec'), {})
    assert capsys.readouterr().out == said

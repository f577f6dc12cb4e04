"""Every mistake in a task of one's own is one line that names what is wrong."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx, struct

import zoo
from tests.compare import refuses
from tests.contracts.classes import C, D, Good, Least, Linear, make_class
from tests.marks import mostly_full
from zoo.estimators.baselines import Baseline, Zero
from zoo.estimators.linear import Ridge
from zoo.host.progress import progress_bar

# Annotations are not enforced, as for a user: zoo's own checks must answer.
pytestmark = pytest.mark.usefixtures('unchecked')


def _sampled(change: Any, **more: Any) -> Any:
  """Changes whole prompts by `change`, of the clean prompt, the key and the size."""

  def sample_batch(self, key, batch_size):
    clean = zoo.tasks.BaseTask.sample_batch(self, key, batch_size)
    return change(clean, key, batch_size)

  return make_class(sample_batch=sample_batch, **more)


def _with_baseline(name: str, predict: Any) -> Any:
  return make_class(baselines=lambda self: {name: predict, 'zero': Zero()})


def _noisy_if_positive(self, key, targets):
  return targets if self.noise_std > 0 else 0 * targets


@struct.dataclass
class _LooksAhead(Baseline):
  def predict(self, examples):
    return jnp.sum(examples.y)


@struct.dataclass
class _Disagrees(Ridge):
  def predictions(self, prompt):
    return super().predictions(prompt) + 1


@struct.dataclass
class _FailsAt(Ridge):
  """The Bayes predictor of the right task, which fails after some examples."""

  num_examples: int = struct.field(pytree_node=False, default=0)

  def predict(self, examples):
    right = super().predict(examples)
    return jnp.where(examples.num_seen == self.num_examples, 10.0, right)


@struct.dataclass
class _SeldomFar(Ridge):
  """An estimate that is far off on about one prompt in 400."""

  by: float = 100.0

  def predict(self, examples):
    right = super().predict(examples)
    return jnp.where(jnp.abs(examples.x_query[0]) > 3, right + self.by, right)


def _shifted(task: Any) -> Any:
  return make_class(shifts=lambda self: {'other': task}, baselines=lambda self: {})


def _keeps_the_query(self, key, prompt, keep):
  return zoo.tasks.FunctionClass.redraw_one(self, key, prompt, 'query')


def _mean_over_batch(prediction, target):
  return jnp.mean(jnp.square(prediction - target))


TASKS: dict[str, tuple[Any, list[str]]] = {
  'no task': (
    type('Own', (), {'sample': None, 'num_features': D}),
    ['Own is not a task: it must be a subclass of zoo.tasks.BaseTask'],
  ),
  'a text as num_features': (make_class(num_features='3'), ["num_features is '3'"]),
  'a function of other features': (
    make_class(num_features=D + 1),
    ['vectors of 4 and 3 entries have no dot product'],
  ),
  'other context_length': (
    _sampled(lambda prompt, key, b: prompt.prefix(C - 1)),
    ['x of the prompts of Own', f'(8, {C}, {D})'],
  ),
  'other num_outputs': (
    make_class(num_outputs=2),
    ['y of the prompts of Own has the shape (8, 4); it must be (8, 4, 2)'],
  ),
  'a tuple': (
    _sampled(lambda prompt, key, b: (prompt.x, prompt.y)),
    ['Own.sample() gives a tuple'],
  ),
  'labels NaN': (
    _sampled(lambda prompt, key, b: dataclasses.replace(prompt, y=prompt.y * jnp.nan)),
    ['y of the prompts of Own is not finite'],
  ),
  'integer labels': (
    _sampled(
      lambda prompt, key, b: dataclasses.replace(prompt, y=prompt.y.astype(int))
    ),
    ['y of the prompts of Own is of type int32'],
  ),
  'labels 0 and 1 of signs': (
    make_class(
      label_kind='signs', evaluate=lambda self, w, x: jnp.float32(x[:, 0] > 0)
    ),
    ["label_kind of Own is 'signs'; its labels y must be −1 or 1"],
  ),
  'signs in place of their probabilities': (
    make_class(label_kind='signs', evaluate=lambda self, w, x: jnp.sign(x[:, 0])),
    ["label_kind of Own is 'signs', and it has targets from -1 to 1"],
  ),
  'classes that are not one-hot': (
    make_class(label_kind='classes', num_outputs=D, evaluate=lambda self, w, x: x),
    ["label_kind of Own is 'classes'; its labels y must be one-hot"],
  ),
  'depends on the batch': (
    _sampled(lambda prompt, key, b: dataclasses.replace(prompt, y=prompt.y * b)),
    ['depends on the length of the batch'],
  ),
  'depends on nothing': (
    _sampled(lambda prompt, key, b: jax.tree.map(jnp.ones_like, prompt)),
    ['the same prompts from every key'],
  ),
  'one loss for all': (
    make_class(loss=staticmethod(_mean_over_batch)),
    ['Own.loss has the shape (); it must be (8,)'],
  ),
  'a loss without a derivative': (
    make_class(loss=staticmethod(lambda p, t: jnp.sqrt(jnp.abs(p - 0.5)) + 0 * t)),
    ['the derivative of Own.loss is not finite'],
  ),
  'a redraw that keeps nothing': (
    make_class(redraw_one=lambda self, key, prompt, keep: self.sample_one(key)),
    ["Own.redraw_one(key, prompt, 'query') changes x_query; it must keep it"],
  ),
  'a redraw that keeps the query alone': (
    make_class(redraw_one=_keeps_the_query),
    ["Own.redraw_one(key, prompt, 'inputs') changes x; it must keep it"],
  ),
  'baselines that are a list': (
    make_class(baselines=lambda self: [Zero()]),
    ['Own.baselines() gives a list; it must be a dict by name'],
  ),
  'a baseline that is a number': (
    _with_baseline('mean', 3.0),
    ['the baseline mean of Own is a float; it must be a predictor'],
  ),
  'a baseline named model': (_with_baseline('model', Zero()), ['named model']),
  'a baseline that reads the target': (
    _with_baseline('oracle', lambda prompt: prompt.y_query),
    ['the baseline oracle of Own reads the target'],
  ),
  'a baseline that reads the targets of the context': (
    _sampled(
      lambda prompt, key, b: dataclasses.replace(prompt, context_targets=prompt.y),
      baselines=lambda self: {'oracle': lambda prompt: prompt.context_targets[:, -1]},
    ),
    ['the baseline oracle of Own reads the target'],
  ),
  'a baseline that looks ahead': (
    _with_baseline('ahead', _LooksAhead()),
    ['the baseline ahead of Own.predictions(prompt)', 'example'],
  ),
  'a baseline of two minds': (
    _with_baseline('two', _Disagrees()),
    ['the baseline two of Own.predictions(prompt) at the query is not'],
  ),
  'a bayes that is worse': (
    make_class(baselines=lambda self: {'bayes': Zero(), 'ols': Ridge()}),
    ['bayes of Own is worse than', 'examples, by'],
  ),
  'a bayes that is worse at one number of examples': (
    make_class(baselines=lambda self: {'bayes': _FailsAt(num_examples=3)}),
    ['bayes of Own is worse than', 'after 3 examples'],
  ),
  'a bayes that is seldom infinite': (
    make_class(baselines=lambda self: {'bayes': _SeldomFar(by=jnp.inf)}),
    ['bayes of Own is not finite after'],
  ),
  'a shift that is no task': (
    _shifted(3),
    ['the shift other of Own is a int; it must be a task'],
  ),
  'a shift with other features': (
    _shifted(zoo.create_task('quadratic_regression', num_features=5, context_length=4)),
    ['x_query of the shift other of Own has the shape (2, 5); it must be (2, 3)'],
  ),
}


# The others share their checks or their programs with one of these; with --full, all.
_QUICK = [
  *('no task', 'a text as num_features', 'labels NaN', 'labels 0 and 1 of signs'),
  *('depends on the batch', 'a baseline that looks ahead', 'a shift that is no task'),
  'a bayes that is worse at one number of examples',
]
_SLOW = [
  *('depends on nothing', 'a loss without a derivative', 'a redraw that keeps nothing'),
  *('a baseline that reads the target', 'a baseline of two minds'),
  *('a bayes that is worse', 'a bayes that is seldom infinite'),
]


@pytest.mark.parametrize('mistake', mostly_full(_QUICK, TASKS, slow=_SLOW))
def test_a_mistake_in_a_task_is_named_in_one_line(mistake):
  make, said = TASKS[mistake]
  with refuses(*said):
    zoo.check_task(make())


@pytest.mark.parametrize(
  ('make', 'kind'),
  [
    (
      make_class(
        sample_labels=_noisy_if_positive,
        noise_std=1.0,
        __annotations__={'noise_std': 'float'},
      ),
      jax.errors.TracerBoolConversionError,
    ),
    (_sampled(lambda prompt, key, b: {}['a\nb']), KeyError),
  ],
)
def test_an_error_of_the_task_passes_with_a_note_of_what_was_called(make, kind):
  with pytest.raises(kind) as info:
    zoo.check_task(make())
  assert info.value.__notes__[-1] == 'Own.sample(key, 8) failed'
  assert __file__ in [str(entry.path) for entry in info.traceback]


def test_a_right_task_passes():
  zoo.check_task(Good())


def test_a_bar_shows_the_parts_of_a_check_from_the_first_prompts_on(monkeypatch):
  bars: list[Any] = []

  def bar_of(*arguments):
    bars.append(progress_bar(*arguments))
    return bars[-1]

  @struct.dataclass
  class Own(Least):
    def sample_one(self, key):
      assert bars
      return super().sample_one(key)

  monkeypatch.setattr('zoo.contracts.tasks.progress_bar', bar_of)
  zoo.check_task(Own())
  (bar,) = bars
  assert bar.n == bar.total > 3


@pytest.mark.slow
@pytest.mark.parametrize('is_far', [False, True])
def test_an_estimate_of_bayes_whose_mean_is_that_of_a_few_prompts_warns(is_far, caplog):
  estimate = _SeldomFar() if is_far else Ridge(penalty=0.01)
  zoo.check_task(make_class(baselines=lambda self: {'bayes_estimate': estimate})())
  said = [line for line in caplog.messages if 'bayes_estimate' in line]
  assert len(said) == is_far
  assert not said or 'of 512 prompts holds' in said[0]


@pytest.mark.slow
def test_the_least_that_a_task_needs_passes():
  zoo.check_task(Least())
  zoo.check_model(Linear(rngs=nnx.Rngs(0)), Least())


@dataclasses.dataclass(frozen=True)
class _NoPytree(zoo.tasks.FunctionClass):
  """A task that is a dataclass of Python, which JAX takes as a single leaf."""

  num_features: int = 2
  context_length: int = 3
  noise_std: float = 0.0

  def sample_function(self, key):
    return jax.random.normal(key, (2,))

  def evaluate(self, function, x):
    return jnp.sum(x * function[None], axis=1)


def test_a_task_that_is_no_pytree_is_named_wherever_it_is_used():
  task: Any = _NoPytree()
  said = '_NoPytree is no pytree; decorate it with flax.struct.dataclass'
  with refuses(said):
    task.sample(jax.random.key(0), 2)
  with refuses(said):
    zoo.curve(Zero(), task)


def test_a_field_that_is_no_array_is_named():
  @struct.dataclass
  class Own(make_class()):
    kind: str = 'sine'

  for call in zoo.check_task, lambda task: zoo.curve(Zero(), task):
    with refuses('Own.kind is of type str', 'flax.struct.field(pytree_node=False)'):
      call(Own())


@pytest.mark.parametrize('key', [0, 'key', [jax.random.key(0)] * 2, [0] * 3])
def test_a_key_that_is_no_key_is_one_line(key):
  task = zoo.create_task('linear_regression', num_features=2, context_length=3)
  if isinstance(key, list):
    key = jnp.array(key, None if len(key) == 2 else 'uint32')
  prompt = task.sample(jax.random.PRNGKey(0), 2)
  for call in (
    lambda: task.sample(key, 2),
    lambda: task.redraw(key, prompt, 'inputs'),
  ):
    with refuses('it must be one random key, such as jax.random.key(0)'):
      call()


@pytest.mark.parametrize('rngs', [0, jax.random.key(0), None])
def test_rngs_without_a_stream_are_one_line(rngs):
  with refuses('it must have a stream params, as flax.nnx.Rngs(0) has'):
    zoo.create_model('yq_lsa', num_features=2, rngs=rngs)

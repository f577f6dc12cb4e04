"""Heads: models whose readout gives the distribution of a label."""

# Models are known by their base class, and have attributes of their own.
# pyright: reportAttributeAccessIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.built import abstract_of, model_of
from tests.compare import refuses
from tests.compiled import counted
from tests.marks import mostly_full, mostly_slow
from tests.models import bodies
from tests.weights import drawn
from zoo.config.building import abstract_parts, build_task
from zoo.config.read import read
from zoo.core import registry
from zoo.core.distributions import Bars, Classes, Gaussian
from zoo.models import TokenModel, quantile_edges
from zoo.models.heads import NUM_BARS

_EDGES = np.array([-3.0, -1.0, 0.0, 1.5, 4.0], np.float32)
_NAMES = [
  name
  for name in zoo.list_models()
  if 'head' in registry.parameters(registry.MODELS[name])
]
# Token models whose readout may have several outputs.
_WITH_READOUT = [
  name
  for name in zoo.list_models()
  if issubclass(registry.MODELS[name], TokenModel)
  and 'num_outputs' in registry.parameters(registry.MODELS[name])
]
_SIZES = {'num_features': bodies.D, 'context_length': bodies.C, 'num_layers': 1}
_SIZES |= {'width': 8, 'num_heads': 2}


def _model(name, head, **arguments):
  taken = registry.parameters(registry.MODELS[name])
  sizes = {field: size for field, size in _SIZES.items() if field in taken}
  edges = {'edges': _EDGES} if head == 'bars' else {}
  return drawn(
    lambda: zoo.create_model(
      name, head=head, **sizes, **edges, **arguments, rngs=nnx.Rngs(0)
    ),
    dtype='float32',
  )


def test_the_models_with_a_readout_have_a_head():
  assert {'deep_set', 'transformer'} < {*_NAMES}
  # The readout of deep_lsa, a model of the theory, gives predictions alone.
  assert {*_WITH_READOUT} - {*_NAMES} == {'deep_lsa'}
  assert {*_NAMES} <= {*_WITH_READOUT}


@pytest.mark.parametrize(
  'name', mostly_full(['transformer'], _NAMES, slow=['deep_set'])
)
@pytest.mark.parametrize('head', mostly_slow(['bars'], ['gaussian']))
def test_the_distribution_is_that_of_the_outputs(name, head):
  """The outputs are read before the head, and go through its equation in NumPy."""
  prompt = bodies.prompt()

  @nnx.jit
  def run(model, prompt):
    outputs = model.body(model.embed(prompt), slice(-1, None))
    outputs = outputs.reshape(-1, *outputs.shape[-3:])[-1, :, 0]
    return outputs, model.distribution(prompt), model(prompt)

  outputs, distribution, prediction = run(_model(name, head), prompt)
  outputs = np.asarray(outputs, np.float64)
  if head == 'gaussian':
    assert isinstance(distribution, Gaussian)
    np.testing.assert_array_equal(distribution.mean, outputs[:, 0].astype('f'))
    np.testing.assert_allclose(distribution.std, np.exp(outputs[:, 1] / 2), rtol=1e-6)
  else:
    assert isinstance(distribution, Bars)
    np.testing.assert_array_equal(distribution.logits, outputs.astype('f'))
    np.testing.assert_array_equal(distribution.edges, _EDGES)
  np.testing.assert_array_equal(prediction, distribution.mean)


@pytest.mark.slow
@pytest.mark.parametrize('head', mostly_full(['bars'], ['gaussian']))
def test_one_pass_gives_the_distribution_of_every_example(head):
  model, prompt = _model('transformer', head), bodies.prompt()
  everywhere, predictions = nnx.jit(
    lambda model, prompt: (model.distributions(prompt), model.predictions(prompt))
  )(model, prompt)
  np.testing.assert_array_equal(everywhere.mean, predictions)
  alone = nnx.jit(lambda model, prompt: model.distribution(prompt))(
    model, prompt.prefix(2)
  )
  # The same sums of some tens of float32 numbers, in other programs.
  np.testing.assert_allclose(everywhere[:, 2].mean, alone.mean, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(everywhere[:, 2].std, alone.std, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('head', mostly_full(['bars'], ['gaussian']))
def test_a_residual_guess_moves_the_distribution(head):
  """With g(x) = w·x outside: the distribution of y − g(X), moved by g(x_q)."""
  prompt = bodies.prompt()
  model, without = (
    _model('deep_set', head, guess=guess) for guess in ('residual', 'zero')
  )
  nnx.update(model, nnx.state(without, nnx.Param))
  weights = jnp.array([[0.5], [-1.0], [2.0]])
  model.guess.weights[...] = weights

  @nnx.jit
  def both(model, without, prompt):
    corrected = prompt.y - (prompt.x @ weights)[..., 0]
    rest = zoo.Prompt(prompt.x, corrected, prompt.x_query, prompt.y_query)
    return model.distribution(prompt), without.distribution(rest)

  moved, rest = both(model, without, prompt)
  guess = np.asarray(prompt.x_query @ weights)[:, 0]
  np.testing.assert_allclose(moved.mean, rest.mean + guess, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(moved.std, rest.std, rtol=1e-5)
  at = moved.quantile(0.3)
  np.testing.assert_allclose(at, rest.quantile(0.3) + guess, rtol=1e-5, atol=1e-5)


def test_classes_are_the_logits_and_a_number_has_no_distribution():
  model, prompt = _model('deep_set', 'point', num_outputs=3), bodies.prompt(3)

  @nnx.jit
  def run(model, prompt):
    return model.distribution(prompt), model(prompt), model.distributions(prompt)

  classes, prediction, everywhere = run(model, prompt)
  assert isinstance(classes, Classes)
  np.testing.assert_array_equal(classes.logits, prediction)
  assert everywhere.logits.shape == (bodies.B, bodies.C + 1, 3)
  with refuses("DeepSet has head = 'point'", "'gaussian' or 'bars'"):
    _model('deep_set', 'point').distribution(bodies.prompt())


def test_wrong_heads_are_refused():
  with refuses("head is 'gaussian' and num_outputs 3; it must be 'point'"):
    _model('deep_set', 'gaussian', num_outputs=3)
  with refuses("edges are only for head = 'bars'; head is 'gaussian'"):
    _model('deep_set', 'gaussian', edges=_EDGES)
  with refuses("head is 'bars', and edges is None", 'quantile_edges'):
    zoo.create_model('deep_set', num_features=2, head='bars', rngs=nnx.Rngs(0))
  for wrong in [0.0, 1.0], [0.0, 2.0, 1.0]:
    with refuses('edges has', 'at least three numbers, which increase'):
      zoo.create_model(
        'deep_set', num_features=2, head='bars', edges=wrong, rngs=nnx.Rngs(0)
      )


@pytest.mark.slow
def test_quantile_edges_share_the_labels_equally():
  task = zoo.create_task('linear_regression', num_features=3, context_length=6)
  edges = np.asarray(quantile_edges(task, 8))
  labels = np.asarray(task.sample(jax.random.key(1), 4096).y).ravel()
  shares = np.histogram(labels, [-np.inf, *edges[1:-1], np.inf])[0] / len(labels)
  # The labels of a prompt are of one function: some 2,048 independent draws give the
  # edges, and 4,096 the shares. Five standard errors: 5 √(⅛ ⅞ (1/2048 + 1/4096)).
  np.testing.assert_allclose(shares, 1 / 8, atol=0.045)
  below = np.mean(labels < edges[0])
  np.testing.assert_allclose(below, 1 / 16, atol=0.033)


@pytest.mark.slow
def test_labels_that_repeat_have_bars_with_a_width():
  @zoo.tasks.register_task('test_two_labels')
  @zoo.tasks.base.struct.dataclass(eq=False, repr=False)
  class TwoLabels(zoo.tasks.FunctionClass):
    num_features: int = zoo.tasks.base.struct.field(pytree_node=False, default=2)
    context_length: int = zoo.tasks.base.struct.field(pytree_node=False, default=3)

    def sample_function(self, key):
      return jnp.zeros(())

    def evaluate(self, function, x):
      return jnp.where(x[:, 0] > 0, 1.0, 0.0)

  try:
    edges = np.asarray(quantile_edges(zoo.create_task('test_two_labels'), 4))
    assert np.all(np.diff(edges) > 0)
    assert edges[0] == 0.0
  finally:
    del registry.TASKS['test_two_labels']


def _config(model='deep_set', task='linear_regression', head='bars'):
  config = zoo.default_config(model, task)
  config.model.head = head
  return config


@pytest.mark.slow
def test_shapes_alone_draw_no_edges():
  config = read(_config())
  task = build_task(config)
  with counted() as programs:
    _, state = abstract_parts(config, task)
  assert not programs
  assert state['edges'].get_value().shape == (NUM_BARS + 1,)


def test_a_head_for_numbers_is_refused_where_labels_are_classes():
  with refuses("config.model.head is 'bars'; it must be 'point'", 'signs'):
    abstract_of(_config('transformer', 'logistic_regression'))
  with refuses("config.model.head is 'gaussian'; it must be 'point'", 'classes'):
    abstract_of(_config('transformer', 'gaussian_clusters', 'gaussian'))
  with refuses('the labels of Tabular have', 'for labels that are one number'):
    zoo.models.quantile_edges(zoo.create_task('tabular', kind='both'), 4)


@pytest.mark.slow
def test_a_saved_model_has_its_head_and_its_edges(tmp_path):
  config = _config()
  config.model.width = 8
  model = model_of(config, nnx.Rngs(3))
  task = zoo.create_task(**{**config.task.to_dict()})
  np.testing.assert_array_equal(model.edges[...], quantile_edges(task))
  assert len(model.edges[...]) == NUM_BARS + 1
  assert 'edges' not in nnx.to_pure_dict(nnx.state(model, nnx.Param))
  zoo.save(model, tmp_path / 'a', config)
  loaded = zoo.load(tmp_path / 'a').model
  assert loaded.head == 'bars'
  leaves, expected = (jax.tree.leaves(nnx.state(one)) for one in (loaded, model))
  for leaf, other in zip(leaves, expected, strict=True):
    np.testing.assert_array_equal(leaf, other)


@pytest.mark.slow
@pytest.mark.parametrize('head', mostly_full(['gaussian'], ['bars']))
def test_instruments_see_a_model_with_a_head(head):
  task = zoo.create_task('linear_regression', num_features=bodies.D, context_length=4)
  edges = {'edges': quantile_edges(task, 8)} if head == 'bars' else {}
  model = zoo.create_model(
    'transformer',
    num_features=bodies.D,
    context_length=4,
    num_layers=1,
    width=8,
    head=head,
    **edges,
    rngs=nnx.Rngs(0),
  )
  prompt = task.sample(jax.random.key(0), 8)
  outputs = zoo.probing.capture(model, prompt, ['read_out'])['read_out']
  assert outputs.shape[-1] == model.num_reads
  if head == 'bars':  # the mean of bars is not linear in the outputs
    with refuses('the contributions to the prediction of Transformer miss it'):
      zoo.probing.attribution(model, prompt)
    with refuses("head is 'bars'"):
      zoo.probing.copying_score(model, 0, 0)
  else:
    seen = zoo.probing.attribution(model, prompt)
    np.testing.assert_allclose(seen.prediction, model(prompt), rtol=1e-5, atol=1e-6)
    assert zoo.probing.copying_score(model, 0, 0) in (-1.0, 1.0)

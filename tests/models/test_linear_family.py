import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import oracle
from tests.compare import assert_close, refuses
from tests.compiled import built
from tests.marks import mostly_full
from tests.weights import heads as heads_of
from zoo.models import linear_attention

_B = 3
# d and C differ, both ways round. With H = 1 and 2 the prediction goes head by head,
# with H = 11 through the learning rule (see test_call_takes_the_cheaper_path).
_SHAPES = [(3, 7), (5, 2)]
_HEADS = {'lsa': [1], 'multi_head_lsa': [1, 2, 11], 'yq_lsa': [1, 2, 11]}
_HEADS |= {'ltb': [1, 2, 11]}
_CASES = [
  (name, heads, d, c)
  for name, counts in _HEADS.items()
  for heads in counts
  for d, c in _SHAPES
]

# Relative to the largest prediction of the batch, as asked of the models. In float32 an
# entry is a sum of some thousand products, whose roundings of 6e-8 add up like a random
# walk: about 2e-6. In float64 the same is 4e-15, and 1e-12 leaves room for bad luck.
_TOLERANCE = {'float32': 1e-5, 'float64': 1e-12}

# Each model. The quick case compares both paths: by head, and the learning rule.
_QUICK = [('yq_lsa', 2, 5, 2)]
_SLOW = [('lsa', 1, 3, 7), ('ltb', 11, 3, 7), ('multi_head_lsa', 11, 5, 2)]
_each_case = pytest.mark.parametrize(
  ('name', 'heads', 'd', 'c'),
  mostly_full(_QUICK, _CASES, slow=_SLOW),
  ids=str,
)
_each_precision = pytest.mark.parametrize(
  'precision', mostly_full(['float64'], ['float32'])
)


def _guess(d: int) -> np.ndarray:
  return np.linspace(-1.0, 1.5, d)


def _model(name: str, heads: int, d: int, seed: int = 0, **changes) -> Any:
  """A model whose every part matters: large matrices, and no guess that is 0."""
  # H random heads add up to √H times one, each being of the fourth power of the scale.
  init_scale = 0.5 * heads ** (-1 / 8)
  arguments: dict[str, Any] = {'num_features': d, 'init_scale': init_scale}
  if name != 'lsa':
    arguments['num_heads'] = heads
  if name in ('lsa', 'multi_head_lsa'):
    arguments |= {'initial_guess': _guess(d), 'initial_bias': 0.7}
  if name == 'ltb':
    arguments['hidden_features'] = d + 3
  arguments |= changes
  model: Any = built(lambda: zoo.create_model(name, **arguments, rngs=nnx.Rngs(seed)))  # pyright: ignore
  if name == 'yq_lsa':
    model.w[...] = jnp.asarray(_guess(d), model.w.dtype)
  return model


def _prompt(d: int, c: int, seed: int = 0) -> zoo.Prompt:
  """Correlated features, and labels that are not linear in them."""
  draw = np.random.default_rng(seed).normal
  x = draw(size=(_B, c, d)) @ draw(size=(d, d))
  y = x @ draw(size=d) + draw(size=(_B, c)) + 0.5
  dtype = jnp.result_type(float)
  arrays = x, y, draw(size=(_B, d)), np.zeros(_B)
  return zoo.Prompt(*(jnp.asarray(array.astype(dtype), dtype) for array in arrays))


def _examples(prompt: zoo.Prompt):
  return zip(*map(np.asarray, (prompt.x, prompt.y, prompt.x_query)), strict=True)


@functools.partial(jax.jit, static_argnums=0)
def _all_it_says(graph: nnx.GraphDef, state: nnx.State, prompt: zoo.Prompt):
  """Compiled as a whole, since operations are compiled one by one otherwise."""
  model: Any = nnx.merge(graph, state)
  rule = model.learning_rule()

  def total(x_query):
    return model(zoo.Prompt(prompt.x, prompt.y, x_query, prompt.y_query)).sum()

  return (
    model.forward_tokens(model.embed(prompt)),
    model(prompt),
    rule(prompt),
    rule.weights(prompt),
    jax.grad(total)(prompt.x_query),
    rule,
  )


def _expected(name: str, model: Any, prompt: zoo.Prompt) -> np.ndarray:
  """The updated embedding matrices [b, e, t], by the equations."""
  matrices, precision = [], np.asarray(prompt.x).dtype
  heads = heads_of(model)
  for x, y, x_query in _examples(prompt):
    if name == 'ltb':
      tokens = oracle.embed(x, y, x_query, 0.0)
      updated = oracle.ltb_tokens(tokens, heads, model.w_1[...], model.w_2[...])
    else:
      # The model's own guess, as it was rounded to the precision.
      guess, bias = _guess(len(x_query)).astype(precision), 0.0
      if name != 'yq_lsa':
        bias = float(np.asarray(0.7, precision))
      y_guess = float(guess.astype(np.float64) @ x_query) + bias
      tokens = oracle.embed(x, y, x_query, y_guess)
      updated = oracle.multi_head_tokens(tokens, heads)
    matrices.append(updated)
  return np.stack(matrices)


@_each_precision
@_each_case
def test_all_that_a_model_says_is_the_equation_of_the_paper(
  name, heads, d, c, precision
):
  with jax.enable_x64(precision == 'float64'):
    model, prompt = _model(name, heads, d), _prompt(d, c)
    said = jax.device_get(_all_it_says(*nnx.split(model), prompt))
  assert {leaf.dtype for leaf in jax.tree.leaves(said)} == {np.dtype(precision)}
  tokens, called, by_rule, weights, gradient, rule = said
  expected, tolerance = _expected(name, model, prompt), _TOLERANCE[precision]
  # Tokens are rows in code.
  assert_close(np.swapaxes(tokens, 1, 2), expected, tolerance)
  for prediction in (called, by_rule):
    assert_close(prediction, expected[:, -1, -1], tolerance)
  # The weights that are learned in context are the gradient.
  assert_close(gradient, weights, tolerance)
  of_rule = [
    oracle.rule_weights(x, y, rule.init, rule.update) for x, y, _ in _examples(prompt)
  ]
  assert_close(weights, np.stack(of_rule), tolerance)
  # Compiled, the two halves of a symmetric pair may be rounded differently.
  rounding = {'float64': 1e-15, 'float32': 1e-6}[precision]
  assert_close(rule.update, np.swapaxes(rule.update, 1, 2), rounding)
  assert_close(rule.bias_update, np.transpose(rule.bias_update), rounding)
  if name in ('yq_lsa', 'ltb'):  # no constant in these
    assert rule.bias == 0
    assert not np.any(rule.bias_update)
  # Attention matters here, or an error in it could hide below the tolerance. Nor may it
  # hide the rest.
  rest = np.asarray(prompt.x_query) @ rule.init + rule.bias
  largest = np.abs(called).max()
  assert np.abs(called - rest).max() >= 0.1 * largest
  assert np.abs(rest).max() >= 0.01 * largest


@pytest.mark.parametrize(
  ('heads', 'd', 'c', 'through_rule'),
  [
    (1, 3, 7, False),
    (2, 3, 7, False),  # 2·(14 + 4) = 36 ≤ (7 + 3)·4 = 40
    (3, 3, 7, True),  # 54 > 40
    (4, 5, 2, False),  # 4·(4 + 6) = 40 ≤ (2 + 5)·6 = 42
    (11, 5, 2, True),
  ],
)
def test_call_takes_the_cheaper_path(monkeypatch, heads, d, c, through_rule):
  taken = []
  rule_of = linear_attention.LinearAttention.learning_rule

  def spy(model):
    taken.append(model)
    return rule_of(model)

  monkeypatch.setattr(linear_attention.LinearAttention, 'learning_rule', spy)
  nnx.eval_shape(lambda: _model('multi_head_lsa', heads, d)(_prompt(d, c)))
  assert bool(taken) == through_rule


@pytest.mark.slow
def test_yq_lsa_starts_without_a_guess():
  model: Any = built(
    lambda: zoo.create_model('yq_lsa', num_features=3, rngs=nnx.Rngs(0))
  )
  np.testing.assert_array_equal(model.w[...], np.zeros(3))


@pytest.mark.parametrize(
  ('name', 'extra'),
  [('lsa', {}), ('multi_head_lsa', {}), ('yq_lsa', {'w'}), ('ltb', {'w_1', 'w_2'})],
)
def test_parameters_have_the_promised_names_and_shapes(name, extra):
  heads, d = 1 if name == 'lsa' else 2, 3
  parameters = nnx.state(nnx.eval_shape(lambda: _model(name, heads, d)), nnx.Param)
  shapes = {key: leaf.shape for key, leaf in nnx.to_pure_dict(parameters).items()}
  matrices = dict.fromkeys(('w_k', 'w_q', 'w_v', 'w_p'), (heads, d + 1, d + 1))
  extras = {'w': (d,), 'w_1': (d + 3, d + 1), 'w_2': (d + 3, d + 1)}
  assert shapes == matrices | {key: extras[key] for key in extra}


@pytest.mark.slow
@pytest.mark.parametrize('name', mostly_full(['multi_head_lsa'], ['lsa']))
def test_the_fixed_guess_is_saved_with_the_model_but_not_trained(name):
  model = _model(name, 1, 3)
  fixed = nnx.to_pure_dict(nnx.state(model, linear_attention.Constant))
  saved = sorted(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(fixed)]))
  np.testing.assert_allclose(saved, sorted([*_guess(3), 0.7]), rtol=1e-6)
  prompt = _prompt(3, 7)
  trained = nnx.eval_shape(
    lambda: nnx.grad(lambda m: m(prompt).sum())(_model(name, 1, 3))
  )
  assert set(nnx.to_pure_dict(trained)) == {'w_k', 'w_q', 'w_v', 'w_p'}


@pytest.mark.slow
def test_matrices_are_drawn_with_the_scale_asked_for_and_independently():
  arguments = {'num_features': 15, 'num_heads': 4, 'init_scale': 0.2}
  model: Any = built(lambda: zoo.create_model('ltb', **arguments, rngs=nnx.Rngs(0)))
  drawn = [np.ravel(leaf) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
  for entries in drawn:
    # The standard error of a standard deviation from n draws is σ/√(2n).
    assert abs(entries.std() - 0.2) <= 5 * 0.2 / np.sqrt(2 * entries.size)
    assert abs(entries.mean()) <= 5 * 0.2 / np.sqrt(entries.size)
  for i, matrix in enumerate(drawn):
    for other in drawn[:i]:
      n = min(matrix.size, other.size)
      assert abs(np.mean(matrix[:n] * other[:n])) <= 5 * 0.04 / np.sqrt(n)


@pytest.mark.parametrize(
  ('name', 'changes', 'said'),
  [
    ('multi_head_lsa', {'initial_guess': [1.0, 2.0]}, 'initial_guess has shape (2,)'),
    ('lsa', {'initial_guess': np.ones((3, 1))}, 'initial_guess has shape (3, 1)'),
    ('lsa', {'initial_guess': [0.0, np.inf, 0.0]}, 'inf'),
    ('multi_head_lsa', {'initial_bias': np.nan}, 'initial_bias is nan'),
    ('lsa', {'initial_bias': [0.0]}, 'initial_bias is [0.0]'),
    ('ltb', {'hidden_features': 3}, 'hidden_features is 3; it must be an integer ≥ 4'),
  ],
  ids=lambda value: value if isinstance(value, str) else '',
)
def test_bad_input_is_refused_in_one_line(unchecked, name, changes, said):
  arguments = {'num_features': 3, 'rngs': nnx.Rngs(0)}
  if name == 'multi_head_lsa':
    arguments['num_heads'] = 2
  with refuses(said):
    zoo.create_model(name, **(arguments | changes))


# By head, and by the learning rule.
@pytest.mark.slow
@pytest.mark.parametrize('heads', mostly_full([2], [], slow=[30]))
def test_without_examples_a_model_predicts_what_its_rule_starts_from(heads):
  model, prompt = _model('multi_head_lsa', heads, 3), _prompt(3, 4)

  @nnx.jit
  def run(model, prompt):
    rule, none = model.learning_rule(), prompt.prefix(0)
    return model(none), rule(none), rule.predictions(prompt)[:, 0]

  *predictions, start = run(model, prompt)
  for prediction in predictions:
    np.testing.assert_allclose(prediction, start, rtol=1e-5, atol=1e-6)  # float32

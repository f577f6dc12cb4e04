"""Heads: against models that are made without them, and by their weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from tests import weights
from tests.compare import refuses
from tests.compiled import predict
from tests.marks import mostly_full
from tests.probing.models import Softmax, biased, induction, sample
from tests.settings import general, isotropic
from tests.weights import drawn
from zoo import theory
from zoo.probing import attribution, capture, copying_score, heads, ov, prune, qk

_TASK = general(noise_std=0.7)


def test_pruning_leaves_the_model_that_has_the_other_heads():
  model = biased()
  measured, risk = heads(model, _TASK), theory.exact_risk(model, _TASK)
  for head in range(2):
    smaller = biased(num_heads=1)
    for name in ('w_p', 'w_v', 'w_k', 'w_q'):
      others = np.delete(np.asarray(getattr(model, name)[...]), head, axis=0)
      getattr(smaller, name)[...] = jnp.asarray(others)
    cost = theory.exact_risk(smaller, _TASK) - risk
    assert measured[head].pruning_cost == pytest.approx(cost, rel=1e-9)
    gap = theory.squared_difference(prune(model, [head]), smaller, _TASK)
    assert gap.prediction == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_value_and_form_are_the_products_of_the_matrices():
  model = biased()
  pairs = zip(heads(model, _TASK), weights.heads(model), strict=True)
  for head, (w_p, w_v, w_k, w_q) in pairs:
    np.testing.assert_allclose(head.value, (w_p @ w_v)[-1], rtol=1e-12)
    np.testing.assert_allclose(head.form, w_k.T @ w_q, rtol=1e-12, atol=1e-15)


@pytest.mark.slow
def test_shares_sum_to_1_and_are_those_of_samples():
  task = isotropic(3, 4, prior_mean=0.5)
  model = biased(num_heads=3)
  shares = np.array([head.share for head in heads(model, task)], float)
  assert sum(shares) == pytest.approx(1, rel=1e-12)
  num_prompts = 100_000
  prompt = task.sample(jax.random.key(0), num_prompts)
  guess = np.asarray(predict(prune(model, [0, 1, 2]), prompt))
  alone = [
    np.asarray(predict(prune(model, [h for h in range(3) if h != head]), prompt))
    - guess
    for head in range(3)
  ]
  together = np.asarray(predict(model, prompt)) - guess
  for head in range(3):
    # The error of a ratio of means, to first order.
    ratio = np.mean(alone[head] * together) / np.mean(together**2)
    spread = np.std(alone[head] * together - ratio * together**2)
    stderr = spread / np.mean(together**2) / num_prompts**0.5
    assert abs(shares[head] - ratio) < 4 * stderr


@pytest.mark.slow
def test_heads_that_do_nothing_have_no_share():
  measured = heads(prune(biased(), [0, 1]), _TASK)
  assert [head.share for head in measured] == [None, None]
  assert [head.pruning_cost for head in measured] == [0, 0]


@pytest.mark.slow
def test_heads_that_cancel_one_another_have_no_share():
  model = biased()
  for name in ('w_p', 'w_v', 'w_k', 'w_q'):
    matrices = getattr(model, name)
    sign = -1 - 1e-7 if name == 'w_p' else 1
    matrices[...] = jnp.stack([matrices[0], sign * matrices[0]])
  assert [head.share for head in heads(model, _TASK)] == [None, None]


def test_mistakes_are_named():
  with refuses('head 2 cannot be pruned', 'from 0 to 1'):
    prune(biased(), [2])
  for other in Softmax(3), zoo.estimators.bayes(isotropic(3, 4)):
    with refuses('no separable heads'):
      heads(other, isotropic(3, 4))


def _model(norm='layer', **options):
  """A transformer of one layer of attention, without biases and positions."""
  model: Any = drawn(
    lambda: zoo.models.Transformer(
      3,
      4,
      num_layers=1,
      num_heads=2,
      width=8,
      feed_forward='none',
      positions='none',
      norm=norm,
      rngs=nnx.Rngs(0),
      **options,
    ),
    dtype='float32',
  )
  for _, module in nnx.iter_modules(model):
    bias: Any = getattr(module, 'bias', None)
    if bias is not None:
      bias[...] = bias[...] * 0
  return model


@pytest.mark.parametrize(
  ('norm', 'mixer'),
  mostly_full([('layer', 'softmax')], [('none', 'linear'), ('rms', 'relu')]),
)
def test_scores_and_contributions_follow_from_the_weights(norm, mixer):
  model = _model(norm, mixer=mixer)
  prompt = sample(isotropic(3, 4), jax.random.key(0), 5)
  values = {k: np.asarray(v) for k, v in capture(model, prompt).items()}
  at = 'layers.0.mixer.'
  tokens = values['embed'] * values.get(f'{at}norm', 1.0)
  last = values.get('final.norm', np.ones((1, 1, 1)))[:, -1]
  maps = np.asarray(zoo.probing.attention_maps(model, prompt)['layers.0'])
  added = np.asarray(attribution(model, prompt).contributions[f'{at}heads'])
  for head in range(2):
    query, key = (values[f'{at}{name}'][:, :, head] for name in ('query', 'key'))
    products = np.einsum('bqs,bks->bqk', query, key)
    expected = tokens @ qk(model, 0, head) @ np.swapaxes(tokens, 1, 2)
    np.testing.assert_allclose(products, expected, rtol=1e-4, atol=1e-4)
    seen = maps[:, head, -1:] @ tokens @ ov(model, 0, head)
    contributed = (seen[:, 0] * last)[:, 0]
    np.testing.assert_allclose(added[:, head], contributed, rtol=1e-4, atol=1e-5)


def test_a_head_that_copies_has_the_score_1_and_its_opposite_minus_1():
  model, _ = induction()
  assert copying_score(model, 1, 0) == pytest.approx(1, abs=1e-6)
  assert copying_score(model, 1, 1) is None
  assert copying_score(model, 0, 0) is None  # it writes what the next layer reads
  opposite: Any = nnx.clone(model)
  kernel = opposite.layers[1].mixer.out.kernel
  kernel[...] = -kernel[...]
  assert copying_score(opposite, 1, 0) == pytest.approx(-1, abs=1e-6)
  # It looks for tokens by what was written of the one before, which no token has.
  assert not qk(model, 1, 0).any()


def test_what_a_head_adds_to_all_logits_alike_is_no_copy():
  model, _ = induction()
  network: Any = nnx.clone(model)
  k, d = network.num_outputs, network.num_features
  # The head writes the same into every label, whatever label it attends to.
  read_out = network.read_out.kernel
  read_out[...] = read_out[...][:, :1] * np.ones((1, read_out.shape[1]))
  block = ov(network, 1, 0)[d : d + k, :k]
  assert np.abs(block).max() > 0
  np.testing.assert_allclose(block, block[:, :1] * np.ones((1, k)), atol=1e-6)
  assert copying_score(network, 1, 0) is None


@pytest.mark.slow
def test_without_a_linear_map_of_tokens_matrices_are_those_of_the_stream():
  image = zoo.models.Transformer(
    16, 2, num_layers=1, width=8, read_in='convolutional', rngs=nnx.Rngs(0)
  )
  assert qk(image, 0, 0).shape == ov(image, 0, 1).shape == (8, 8)
  with refuses("read_in is not 'flat'"):
    copying_score(image, 0, 0)


def test_weights_that_say_nothing_by_themselves_are_refused():
  model = _model(mixer='delta')
  with refuses('layer 0 is Delta', 'softmax, relu or linear'):
    ov(model, 0, 0)
  with refuses('layer is 1'):
    qk(_model(), 1, 0)
  with refuses('head is 2'):
    qk(_model(), 0, 2)
  with refuses('YqLSA is no zoo.models.Transformer'):
    qk(zoo.models.YqLSA(2, rngs=nnx.Rngs(0)), 0, 0)

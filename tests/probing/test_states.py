"""The states of recurrent mixers are captured, put back, patched and cut."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import zoo
from examples import recall_state
from tests.compare import refuses
from tests.marks import mostly_full
from tests.probing.models import sample
from tests.settings import isotropic
from tests.weights import drawn
from zoo import probing
from zoo.mixers.mixer import Mixer
from zoo.mixers.states import by_steps, named_leaves, state_taps
from zoo.probing import Set, Zero, capture, dead_sites, edited, sites

# Shares are None only where a test says so.
effects: Any = probing.effects

_D, _C, _W = 3, 4, 8
_MIXERS = {name: zoo.core.registry.MIXERS[name] for name in zoo.list_mixers()}
_WITH_STATE = [name for name, mixer in _MIXERS.items() if mixer.step is not Mixer.step]
# Some hundred float32 operations, in another order: a scan in place of a product.
_ROUNDING = 1e-4


def _model(mixer: str, **arguments: Any) -> Any:
  arguments = {'width': _W, 'num_heads': 2, 'num_layers': 1} | arguments
  return drawn(
    lambda: zoo.models.Transformer(_D, _C, mixer=mixer, rngs=nnx.Rngs(0), **arguments),
    dtype='float32',
  )


def _states(model):
  return [site for site in sites(model) if '.state.' in site]


@pytest.mark.parametrize('name', mostly_full([], _WITH_STATE, slow=['delta']))
def test_states_put_back_change_nothing_and_others_all(name):
  model, prompt = _model(name), sample(isotropic(_D, _C), jax.random.key(0), 3)
  names = _states(model)
  assert names
  assert not set(names) & set(capture(model, prompt))  # only where they are asked for
  values = capture(model, prompt, names)
  n = 2 * _C + 1
  assert all(values[site].shape[:2] == (3, n) for site in names)
  before = np.asarray(model(prompt))
  for edits in (
    {},
    {site: Set(values[site]) for site in names},
    {names[0]: Set(values[names[0]][:, 2], np.s_[:, 2])},
  ):
    after = np.asarray(edited(model, edits)(prompt))
    np.testing.assert_allclose(after, before, atol=_ROUNDING * np.abs(before).max())
  # The state after the last token is read by no token.
  zeroed = edited(model, {names[0]: Zero(np.s_[:, -1])})
  np.testing.assert_allclose(zeroed(prompt), before, atol=_ROUNDING)
  zeroed = edited(model, {names[0]: Zero(np.s_[:, -2])})
  assert np.abs(np.asarray(zeroed(prompt)) - before).max() > 1e-3
  # What is captured of an edited model is what the model goes on with.
  doubled = edited(model, {names[0]: lambda value: 2 * value})
  again = capture(doubled, prompt, [names[0]])[names[0]]
  first = 2 * np.asarray(values[names[0]])[:, 0]
  np.testing.assert_allclose(again[:, 0], first, atol=_ROUNDING * np.abs(first).max())
  assert dead_sites(model, prompt, names) == []


# The other mixers count tokens, which have no tap.
_COUNT = 'linear', 'ttt', 'log_linear'
_WITHOUT_PLACES = [name for name in _WITH_STATE if name not in _COUNT]


@pytest.mark.parametrize('name', mostly_full(['gla'], _WITHOUT_PLACES))
def test_a_state_cut_at_a_token_is_a_prompt_that_starts_there(name):
  layer = _model(name).layers[0]
  mixer, cut = layer.mixer, 3
  tokens = jax.random.normal(jax.random.key(1), (2, 7, _W))
  start = named_leaves(mixer.initial_state(2))
  taps = {
    key: Set(start[str(tap.name).removeprefix('mixer.state.')], np.s_[:, cut - 1])
    for key, tap in state_taps(mixer).items()
  }
  outputs = jax.jit(lambda tokens: by_steps(mixer, tokens, taps))(tokens)
  alone = jax.jit(mixer)(tokens[:, cut:])
  scale = np.abs(alone).max()
  np.testing.assert_allclose(outputs[:, cut:], alone, atol=_ROUNDING * scale)
  whole = jax.jit(mixer)(tokens)
  np.testing.assert_allclose(outputs[:, :cut], whole[:, :cut], atol=_ROUNDING * scale)


@pytest.mark.slow
def test_effects_patch_the_state_at_each_token():
  """The state after a token recovers all, if the later tokens are the same."""
  task = isotropic(_D, _C)
  model = _model('gla', positions='none')
  # One prompt whose first label is wrong by forty numbers, so that the gap is sure.
  one = sample(task, jax.random.key(0), 1)
  clean = jax.tree.map(lambda array: jnp.repeat(array, 40, axis=0), one)
  y = clean.y.at[:, 0].add(jnp.linspace(3.0, 4.0, 40))
  corrupt = dataclasses.replace(clean, y=y)
  site = 'layers.0.mixer.state.memory'
  labels = jax.jit(model)(clean)  # so that corrupt prompts have the larger loss
  clean = dataclasses.replace(clean, y_query=labels)
  rows = effects(
    model, task, clean, corrupt, [site], kinds=['recovered'], tokens=True
  ).rows
  shares = [row.recovered.mean for row in rows]
  # The first label is at the token 1: before it nothing differs, and the last state is
  # not read.
  expected = [0.0, *[1.0] * 7, 0.0]
  np.testing.assert_allclose(shares, expected, atol=1e-3)


@pytest.mark.slow
def test_states_and_values_of_one_token_are_not_mixed():
  model, prompt = _model('delta'), sample(isotropic(_D, _C), jax.random.key(0), 3)
  edits = {'layers.0.mixer.state.memory': Zero(), 'layers.0.mixer.key': Zero()}
  with refuses("where the value at 'layers.0.mixer.key' is that of one token"):
    edited(model, edits)(prompt)
  assert _states(_model('softmax')) == _states(_model('hyena')) == []


@pytest.mark.slow
@pytest.mark.full
def test_the_state_after_the_value_carries_the_answer(
  tmp_path, capsys, unchecked, promotion_that_optax_needs
):
  """As docs/layers.md says of the delta rule, after a shorter training."""
  recall_state.main('delta', str(tmp_path / 'run'), 600)
  lines = capsys.readouterr().out.splitlines()
  shares = {
    int(token): float(share)
    for site, token, share, *_ in map(str.split, lines[3:])
    if site == 'layers.0.mixer.state.memory'
  }
  # Nothing is known before the value is read, at the fourth of nine tokens.
  assert max(shares[token] for token in range(3)) < 0.1
  assert min(shares[token] for token in range(3, 8)) > 0.9
  cut = [float(line.split()[3]) for line in lines if line.startswith('from example')]
  assert min(cut[:2]) > 0.9
  assert max(cut[2:]) < 0.3  # chance is 0.125

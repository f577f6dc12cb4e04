"""What is refused before a run begins, since training would not notice it."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx, struct

import zoo
from tests.compare import refuses
from tests.compiled import built
from tests.contracts.classes import C, D, Least, Linear, make_class
from tests.marks import FULL, SLOW, mostly_full
from tests.training.runs import small_config
from zoo.contracts.agreement import check_agreement
from zoo.contracts.mixers import check_mixers
from zoo.mixers.attention import SoftmaxAttention
from zoo.tasks import FunctionClass
from zoo.tasks.base import dot
from zoo.training import train
from zoo.training.compilation import make_training
from zoo.training.experiment import build, validate
from zoo.training.run import checked_state

pytestmark = pytest.mark.usefixtures('register')


def begin(config: Any) -> None:
  """What a run does before it writes anything."""
  validate(config)
  checked_state(make_training(build(config)))


class _Ahead(zoo.mixers.Mixer):
  """Each token reads the next one."""

  def __init__(self, slot, *, rngs):
    self.inner = SoftmaxAttention(slot, rngs=rngs)

  def __call__(self, tokens):
    return self.inner(jnp.roll(tokens, -1, axis=1))


class _FromZero(zoo.models.TokenModel):
  """Its predictions start as 0, and look ahead."""

  def __init__(self, num_features, *, rngs):
    super().__init__(num_features, rngs=rngs)
    self.read_out = nnx.Param(jnp.zeros((self.token_width, 1)))

  def body(self, tokens, at):
    return (jnp.roll(tokens, -1, axis=1) @ self.read_out[...])[:, at]


class _AheadFromZero(zoo.mixers.Mixer):
  """The same, whose outputs are 0 before it is trained."""

  def __init__(self, slot, *, rngs):
    self.ahead = _Ahead(slot, rngs=rngs)
    self.ahead.inner.out.kernel[...] = jnp.zeros((slot.width, slot.width))

  def __call__(self, tokens):
    return self.ahead(tokens)


class _Thrice(zoo.mixers.Mixer):
  """Its outputs for some tokens are three times what they are for all."""

  def __init__(self, width, *, rngs):
    self.out = nnx.Linear(width, width, rngs=rngs)

  def __call__(self, tokens):
    return self.out(tokens)

  def outputs_at(self, tokens, at):
    return 3 * self.out(tokens)[:, at]


class _Changed(zoo.mixers.Mixer):
  """Its outputs are of another type, or not numbers."""

  def __init__(self, width, to='float32', *, rngs):
    self.out, self.to = nnx.Linear(width, width, rngs=rngs), to

  def __call__(self, tokens):
    outputs = self.out(tokens)
    return outputs * jnp.nan if self.to == 'nan' else outputs.astype(self.to)


class _Wide(zoo.mixers.Mixer):
  def __init__(self, width, *, rngs):
    self.out = nnx.Linear(width, 2 * width, rngs=rngs)

  def __call__(self, tokens):
    return self.out(tokens)


class _Mean(zoo.mixers.Mixer):
  """The mean of the tokens so far, whose steps and attention may go wrong."""

  def __init__(self, slot, wrong='no', *, rngs):
    self.out, self.wrong = nnx.Linear(slot.width, slot.width, rngs=rngs), wrong
    self.gate = nnx.Param(jnp.full(slot.width, -9.0))

  def __call__(self, tokens):
    count = 1 + jnp.arange(tokens.shape[1], dtype=tokens.dtype)
    mean = jnp.cumsum(self.out(tokens), axis=1) / count[None, :, None]
    return mean + self.opening()[None, None] * tokens

  def opening(self):
    return jax.nn.sigmoid(self.gate[...])  # 1e-4 before training

  def attention(self, tokens):
    if self.wrong != 'trained':
      return None
    shut = jnp.log(-self.gate[0])  # NaN for a gate that is open, as trained ones are
    return jnp.tril(jnp.ones((len(tokens), 1, *[tokens.shape[1]] * 2))) + 0 * shut

  def initial_state(self, batch):
    count: Any = jnp.zeros((), int if self.wrong == 'type' else float)
    if self.wrong == 'number':
      count = 0.0
    return jnp.zeros((batch, self.out.in_features)), count

  def step(self, token, state):
    total, count = state[0] + self.out(token), jnp.asarray(state[1] + 1, float)
    if self.wrong == 'alone':
      return total
    if self.wrong == 'trained':
      is_open = self.gate[0] > -1
      return jnp.where(is_open, 2, 1) * total / count, (total, count)
    shown = total if self.wrong == 'sum' else total / count
    if self.wrong != 'gate':
      shown += self.opening()[None] * token
    return shown, (total[:1] if self.wrong == 'state' else total, count)


class _Looks(SoftmaxAttention):
  """Attention whose outputs or weights are wrong, or depend on later tokens."""

  def __init__(self, slot, wrong='no', *, rngs):
    super().__init__(slot, rngs=rngs)
    self.wrong = wrong

  def __call__(self, tokens):
    if self.wrong == 'ahead':
      return super().__call__(jnp.roll(tokens, -1, axis=1))
    return super().__call__(tokens)

  def outputs_at(self, tokens, at):
    return self(tokens)[:, at]

  def attention(self, tokens):
    weights: Any = super().attention(tokens)
    if self.wrong == 'shape':
      return weights[:, 0]
    if self.wrong == 'pair':
      weights = weights, tokens
    if self.wrong == 'total':
      return weights / jnp.sum(jnp.square(tokens), axis=(1, 2))[:, None, None, None]
    if self.wrong == 'nan':
      return weights * jnp.nan
    return jnp.ones_like(weights) if self.wrong == 'pattern' else weights


class _Late(_Mean):
  """Its steps go wrong after 16 tokens, or with an option."""

  def __init__(self, slot, limit=16, *, rngs):
    super().__init__(slot, rngs=rngs)
    self.limit = limit

  def step(self, token, state):
    output, state = super().step(token, state)
    return jnp.where(state[1] > self.limit, 2 * output, output), state


class _Model(Linear):
  def __init__(self, num_features, *, rngs):
    super().__init__(num_features, rngs=rngs)


class _ChangedModel(_Model):
  to = 'nan'

  def __call__(self, prompt):
    prediction = super().__call__(prompt)
    return prediction * jnp.nan if self.to == 'nan' else prediction.astype(self.to)


class _Dropout(_Model):
  def __init__(self, num_features, *, rngs):
    super().__init__(num_features, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)

  def __call__(self, prompt):
    return super().__call__(prompt) + self.dropout(jnp.ones(len(prompt.x)))


class _Dict(_Model):
  def __init__(self, num_features, *, rngs):
    super().__init__(num_features, rngs=rngs)
    self.options = {'a': 1}  # no key of a table of programs


# A transformer.
_SMALL: dict[str, Any] = {'num_layers': 1, 'width': 8, 'num_heads': 1}


def _config(cls: type) -> Any:
  zoo.register_model(cls.__name__)(cls)
  return small_config('yq_lsa', model={'name': cls.__name__})


@pytest.mark.parametrize(
  ('cls', 'said'),
  [
    (_FromZero, ['_FromZero.predictions(prompt) looks ahead of example 1']),
    (_Dropout, ['_Dropout(prompt) changes', 'dropout.rngs.count', 'stateless']),
  ],
)
def test_a_model_that_breaks_the_contract_is_refused(cls, said):
  model = built(lambda: cls(3, rngs=nnx.Rngs(0)))
  with refuses(*said):
    check_agreement(model, Least())


class _NoModule:
  def __init__(self, num_features, *, rngs):
    del num_features, rngs

  def __call__(self, prompt):
    return prompt.y_query * 0


class _Fails(_Model):
  def __init__(self, num_features, *, rngs):
    super().__init__(num_features + 'a', rngs=rngs)


def test_what_is_no_model_is_refused_and_an_error_of_a_constructor_passes():
  with refuses('the class _NoModule, which is no nnx.Module'):
    begin(_config(_NoModule))
  with pytest.raises(TypeError) as info:
    begin(_config(_Fails))
  last = info.traceback[-1]
  assert (last.name, str(last.path)) == ('__init__', __file__)


class _Frozen(_Model):
  """Its only numbers are those that an optimizer leaves as they are."""

  def __init__(self, num_features, *, rngs):
    self.w = nnx.BatchStat(jnp.ones(num_features))

  def __call__(self, prompt):
    return prompt.x_query @ self.w[...]


class _NoCall(nnx.Module):
  def __init__(self, num_features, *, rngs):
    self.w = nnx.Param(jnp.ones(num_features))


def test_a_model_without_weights_or_predictions_is_refused(unchecked):
  with refuses('_Frozen has no nnx.Param; there is nothing to train'):
    begin(_config(_Frozen))
  with refuses('_NoCall is not a predictor'):
    begin(_config(_NoCall))


def _raises(self):
  raise KeyError('mine')


@pytest.mark.parametrize(
  ('baselines', 'said'),
  [
    (lambda self: None, 'Own.baselines() gives a NoneType; it must be a dict by name'),
    (lambda self: {'a': 3}, 'the baseline a of Own is a int; it must be a predictor'),
    (lambda self: {'model': abs}, 'Own has a baseline named model'),
    (_raises, None),
  ],
)
def test_a_mistake_in_the_baselines_of_a_task_shows_before_the_run(baselines, said):
  """And not in the comparison after the last step."""
  zoo.register_task('own')(make_class(baselines=baselines))
  config = small_config('yq_lsa', eval__num_compared=8)
  config.task = zoo.default_config('yq_lsa', task='own').task
  if said is None:
    with pytest.raises(KeyError, match='mine'):
      begin(config)
    return
  with refuses(said):
    begin(config)


def test_a_model_that_keeps_it_is_not():
  begin(_config(_Dict))


class _NotFinite(_Model):
  """Its prediction is finite; those of all examples are not."""

  def predictions(self, prompt):
    return jnp.full((*prompt.y.shape[:1], prompt.y.shape[1] + 1), jnp.nan)


def test_predictions_that_are_not_finite_are_named_as_such():
  with refuses('_NotFinite.predictions(prompt) is not finite'):
    check_agreement(built(lambda: _NotFinite(3, rngs=nnx.Rngs(0))), Least())


@pytest.mark.slow
@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.full
def test_a_run_in_a_folder_where_nothing_was_saved_is_checked_too(tmp_path):
  """Such a folder is not empty: a first run of other classes has left its log."""
  config = small_config('yq_lsa', optimizer__learning_rate=1e30, train__num_steps=50)
  with pytest.raises(zoo.RunError, match='not finite'):
    train(config, tmp_path / 'run')
  zoo.register_model('own')(_WithRule)
  config = small_config('yq_lsa', model={'name': 'own'})
  with refuses('_WithRule.learning_rule() does not predict the same as'):
    train(config, tmp_path / 'run')


def _with_mixer(name: str) -> Any:
  """The config of a small transformer."""
  sizes = {f'model__{field}': size for field, size in _SMALL.items()}
  return small_config('transformer', model__mixer=name, **sizes)


@pytest.mark.parametrize(
  'mixer', mostly_full([], [_Ahead, _AheadFromZero], slow=[_AheadFromZero])
)
def test_a_mixer_that_looks_ahead_is_refused(mixer):
  zoo.register_mixer('ahead')(mixer)
  config = _with_mixer('ahead')
  with refuses('Transformer.predictions(prompt) looks ahead of example 1'):
    begin(config)


def _transformer(mixer: str, options: dict[str, Any] | None = None) -> Any:
  return built(
    lambda: zoo.models.Transformer(
      *(3, 4), mixer=mixer, mixer_options=options, **_SMALL, rngs=nnx.Rngs(0)
    )
  )


@pytest.mark.parametrize(
  ('mixer', 'wrong', 'said'),
  [
    (_Thrice, None, '_Thrice.outputs_at differs from _Thrice(tokens)'),
    (_Mean, 'sum', '_Mean.step differs from _Mean(tokens)'),
    (_Mean, 'gate', '_Mean.step differs from _Mean(tokens)'),
    (_Mean, 'state', '_Mean.step changes its state from'),
    pytest.param(_Mean, 'type', "'int32[]') to ('float32", marks=FULL),
    pytest.param(_Mean, 'number', '_Mean.initial_state has the leaf 0.0', marks=FULL),
    pytest.param(_Mean, 'alone', '_Mean.step returns a', marks=FULL),
  ],
)
def test_check_model_compares_the_methods_of_a_mixer(mixer, wrong, said, unchecked):
  zoo.register_mixer('own')(mixer)
  options = {} if wrong is None else {'wrong': wrong}
  with refuses(said):
    zoo.check_model(_transformer('own', options), Least())


@pytest.mark.parametrize(
  ('wrong', 'said'),
  [
    ('ahead', "_Looks(tokens) of the mixer 'own' changes with later tokens"),
    (
      'pattern',
      "_Looks.attention(tokens) of the mixer 'own' is not 0 for later tokens",
    ),
    (
      'total',
      "_Looks.attention(tokens) of the mixer 'own' changes with later tokens",
    ),
    pytest.param(
      *('shape', "_Looks.attention(tokens) of the mixer 'own' has the shape (4, 9, 9)"),
      marks=FULL,
    ),
    pytest.param(
      *('pair', "_Looks.attention(tokens) of the mixer 'own' has the shape tuple"),
      marks=FULL,
    ),
    pytest.param(
      *('nan', "_Looks.attention(tokens) of the mixer 'own' is not finite"),
      marks=FULL,
    ),
  ],
)
def test_a_mixer_that_calls_itself_causal_is(wrong, said, unchecked):
  zoo.register_mixer('own')(_Looks)
  with refuses(said):
    _check(_transformer('own', {'wrong': wrong}))


def _check(model):
  """Checks the mixers on as many tokens as prompts of the model have."""
  sizes = {'num_features': 3, 'context_length': model.context_length}
  task = zoo.create_task('linear_regression', **sizes)
  check_mixers(model, task.sample(jax.random.key(0), 2))


def test_attention_that_is_not_finite_does_not_hide_a_wrong_step():
  """At first the gate is shut, and both are right."""
  zoo.register_mixer('own')(_Mean)
  with refuses('_Mean.step differs from _Mean(tokens)'):
    _check(_transformer('own', {'wrong': 'trained'}))


class _OneToken(zoo.models.Transformer):
  """Its tokens are the examples and the query, whatever its layout."""

  def embed(self, prompt):
    tokens = super().embed(prompt)
    return tokens[:, : prompt.x.shape[1] + 1]


class _OfLength(zoo.mixers.Mixer):
  """A mixer for five tokens alone."""

  causal = False

  def __init__(self, width, *, rngs):
    self.weights = nnx.Param(jnp.ones((5, 5)) / 5)

  def __call__(self, tokens):
    return jnp.einsum('ij,bjw->biw', self.weights[...], tokens)


@pytest.mark.slow
def test_mixers_are_called_on_as_many_tokens_as_the_model_has():
  zoo.register_mixer('own')(_OfLength)
  arguments: Any = {**_SMALL, 'tokens': 'joint', 'mixer': 'own'}
  _check(built(lambda: _OneToken(3, 4, **arguments, rngs=nnx.Rngs(0))))


@pytest.mark.slow
def test_each_mixer_with_other_options_is_called_on_more_tokens_than_a_chunk():
  def right(slot, rngs):
    return _Late(slot, 100, rngs=rngs)

  arguments = {**_SMALL, 'num_layers': 2}
  for mixer in ([right, _Late], [_Late, right]):
    model = built(
      lambda mixer=mixer: zoo.models.Transformer(
        3, 10, mixer=mixer, **arguments, rngs=nnx.Rngs(0)
      )
    )
    with refuses('_Late.step differs from _Late(tokens)'):
      _check(model)


def _wrong_in_steps(name: str, path: str, factor: float) -> type:
  """A shipped mixer whose `step` alone multiplies a weight by a factor."""
  cls: Any = zoo.core.registry.MIXERS[name]

  class Wrong(cls):
    def step(self, token, state):
      other: Any = nnx.clone(self)
      weight = functools.reduce(getattr, path.split('.'), other)
      weight[...] *= factor
      return super(Wrong, other).step(token, state)

  return Wrong


@pytest.mark.parametrize(
  ('name', 'path', 'factor'),
  mostly_full(
    [],
    [
      # A decay that is forgotten, and starts near 1. Of all weights of shipped mixers
      # it is the one whose absence from `step` is the hardest to see.
      ('gla', 'decay.bias', 0.0),
      ('gated_delta', 'gate.kernel', 0.0),  # a gate that is forgotten
      ('rwkv7', 'numbers.bonus', -1.0),  # the sign of a small term
      ('mamba', 'skip', -1.0),
      ('mesa', 'ridge', 0.0),
    ],
    slow=[('gla', 'decay.bias', 0.0)],
  ),
)
def test_a_wrong_step_is_refused_for_any_weight(name, path, factor):
  zoo.register_mixer('own')(_wrong_in_steps(name, path, factor))
  with refuses('Wrong.step differs from Wrong(tokens)'):
    _check(_transformer('own'))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize('name', zoo.list_mixers())
def test_the_methods_of_each_shipped_mixer_agree(name):
  _check(_transformer(name))


@pytest.mark.slow
def test_a_mixer_of_another_width_is_refused(unchecked):
  zoo.register_mixer('own')(_Wide)
  with refuses("_Wide(tokens) of the mixer 'own' has the shape (2, 9, 16)"):
    begin(_with_mixer('own'))


@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.parametrize(
  ('to', 'said'),
  [
    pytest.param('int32', 'is of type int32; it must be float32', marks=FULL),
    pytest.param('bfloat16', 'is of type bfloat16; it must be float32', marks=SLOW),
    pytest.param('nan', 'is not finite', marks=FULL),
  ],
)
def test_outputs_that_are_no_finite_float32_are_named_as_such(to, said, unchecked):
  zoo.register_mixer('changed')(_Changed)
  config = _with_mixer('changed')
  with config.unlocked():
    config.model.mixer_options = {'to': to}
  name = "_Changed(tokens) of the mixer 'changed'"
  with refuses(f'{name} {said}'):
    zoo.check_model(_transformer('changed', {'to': to}), Least())
  with refuses(f'Transformer(prompt) {said}' if to == 'nan' else f'{name} {said}'):
    begin(config)
  own = type('Own', (_ChangedModel,), {'to': to})
  for check in (
    lambda: begin(_config(own)),
    lambda: zoo.check_model(own(3, rngs=nnx.Rngs(0)), Least()),
  ):
    with refuses(f'Own(prompt) {said}'):
      check()


@pytest.mark.slow
def test_a_mixer_whose_methods_agree_is_not():
  zoo.register_mixer('own')(_Mean)
  begin(_with_mixer('own'))


@pytest.mark.parametrize(
  ('kind', 'label', 'said'),
  [
    ('numbers', lambda x: x.astype(int), 'y of the prompts of Own is of type int32'),
    pytest.param(
      *('numbers', lambda x: x.astype('bfloat16'), 'bfloat16; it must be float32'),
      marks=FULL,
    ),
    pytest.param(
      *('signs', jnp.sign, "label_kind of Own is 'signs', and it has targets from -1"),
      marks=SLOW,
    ),
  ],
)
def test_labels_that_the_loss_would_change_are_refused(kind, label, said, unchecked):
  own = make_class(label_kind=kind, evaluate=lambda self, w, x: label(x[:, 0]))
  zoo.core.registry.TASKS['own'] = own
  with refuses(said):
    begin(small_config('yq_lsa', task={'name': 'own'}))
  parts = {
    'name': 'mixture',
    'parts': ({'name': 'own'},),
    'num_features': D,
    'context_length': C,
  }
  if kind == 'signs':
    with refuses('label_kind of Mixture'):
      begin(small_config('yq_lsa', task=parts))


@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.parametrize('chance', [pytest.param(3e-5, marks=FULL), 0.1])
def test_labels_that_are_not_finite_are_what_is_named(chance, tmp_path, register):
  @zoo.register_task('own')
  @struct.dataclass
  class Own(FunctionClass):
    num_features: int = struct.field(pytree_node=False)
    context_length: int = struct.field(pytree_node=False)
    chance: float  # that a label is NaN

    def sample_function(self, key):
      return jax.random.normal(key, (self.num_features,))

    def evaluate(self, function, x):
      return dot(x, function[None])

    def sample_labels(self, key, targets):
      bad = jax.random.uniform(key, targets.shape) < self.chance
      return jnp.where(bad, jnp.nan, targets)

  fields = {'name': 'own', 'num_features': 3, 'context_length': 4, 'chance': chance}
  every = {f'{name}__every': 2000 for name in ('eval', 'checkpoint')}
  config = small_config('yq_lsa', task=fields, train__num_steps=4000, **every)
  config.train.log_every = 1000
  with pytest.raises((zoo.UserError, zoo.RunError)) as info:
    train(config, tmp_path / 'run')
  assert 'y of the prompts of Own is not finite' in str(info.value)
  assert 'learning_rate' not in str(info.value)
  assert isinstance(info.value, zoo.UserError) == (chance == 0.1)


class _OtherBody(zoo.models.Transformer):
  """An own network, which its loss, its curves and its calls all see."""

  def body(self, tokens, at):
    return 3 + super().body(tokens, at)


class _OtherCall(zoo.models.Transformer):
  """A call of its own; the loss is that of the loops of its parent."""

  def __call__(self, prompt):
    return 3 + super().__call__(prompt)


class _OtherLoops(zoo.models.Transformer):
  """Trained on something else than what it predicts."""

  def loop_predictions(self, prompt, every):
    return 0 * super().loop_predictions(prompt, every)

  def __call__(self, prompt):
    return super().loop_predictions(prompt, every=False)[-1, :, 0]

  def predictions(self, prompt):
    return super().loop_predictions(prompt, every=True)[-1]


class _OtherAttention(zoo.mixers.SoftmaxAttention):
  """A mixer of the library, of which one method is another."""

  def __call__(self, tokens):
    return -super().__call__(tokens)


class _OtherTokens(zoo.models.YqLSA):
  """A layer that is not linear, has no rule, and predicts by its tokens."""

  learning_rule: Any = None

  def scores(self, tokens):
    return jnp.tanh(super().scores(tokens))

  def __call__(self, prompt):
    return self.forward_tokens(self.embed(prompt))[:, -1, -1]


class _WithRule(_OtherTokens):
  """The same, with a rule that it does not follow."""

  def learning_rule(self):
    return zoo.models.YqLSA.learning_rule(self)


class _OtherScores(zoo.models.YqLSA):
  """Other scores, which its parent's call does not read."""

  learning_rule: Any = None

  def scores(self, tokens):
    return jnp.tanh(super().scores(tokens))


class _Doubled(zoo.models.YqLSA):
  """Twice its parent's prediction, and its rule says so."""

  def __call__(self, prompt):
    return 2 * super().__call__(prompt)

  def forward_tokens(self, tokens):
    return 2 * super().forward_tokens(tokens)

  def learning_rule(self):
    rule = super().learning_rule()
    return jax.tree.map(lambda leaf: 2 * leaf, rule)


def _sizes(cls: type) -> dict[str, Any]:
  return _SMALL if issubclass(cls, zoo.models.Transformer) else {}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.parametrize('cls', [_OtherBody, _Doubled, _OtherTokens])
def test_a_subclass_of_a_model_of_the_library_trains_as_itself(cls, tmp_path):
  zoo.register_model('own')(cls)
  config = small_config('yq_lsa', model={'name': 'own', **_sizes(cls)})
  *_, last = zoo.training_run(config, tmp_path / 'run')
  assert type(last.model) is cls
  prompt = zoo.create_task(**config.task).sample(jax.random.key(5), 8192)
  squares = np.square(np.asarray(jax.jit(last.model)(prompt)) - prompt.y_query)
  stderr = math.hypot(
    squares.std() / math.sqrt(squares.size), last.metrics['eval_risk_stderr']
  )
  assert abs(last.metrics['eval_risk'] - squares.mean()) < 4 * stderr


@pytest.mark.parametrize(
  ('cls', 'said'),
  [
    pytest.param(
      *(_OtherCall, '_OtherCall.predictions(prompt) at the query is not _OtherCall('),
      marks=FULL,
    ),
    pytest.param(
      *(_OtherLoops, '_OtherLoops.loop_predictions() does not predict the same as'),
      marks=SLOW,
    ),
    (_WithRule, '_WithRule.learning_rule() does not predict the same as'),
    pytest.param(
      *(_OtherScores, '_OtherScores.forward_tokens() does not predict the same as'),
      marks=SLOW,
    ),
  ],
)
def test_a_subclass_whose_methods_disagree_is_refused(cls, said, tmp_path):
  zoo.register_model('own')(cls)
  config = small_config('yq_lsa', model={'name': 'own', **_sizes(cls)})
  with refuses(said):
    train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_subclass_of_a_mixer_whose_methods_disagree_is_refused(unchecked):
  zoo.register_mixer('own')(_OtherAttention)
  with refuses('differs from _OtherAttention(tokens)'):
    zoo.check_model(_transformer('own'), Least())

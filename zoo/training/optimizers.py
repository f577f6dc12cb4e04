"""The optax optimizer that a config names, with its schedule."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import PyTree

from zoo.config.run import OptimizerFields
from zoo.core.errors import UserError, in_one_line
from zoo.core.protocols import Model
from zoo.core.registry import check_registered, entering
from zoo.core.roles import ROLES, matches, parameter_roles, shared_paths

_Function = TypeVar('_Function', bound=Callable[..., Any])
# A mask of optax maps a tree of weights to a tree of truth values.
Mask: TypeAlias = Callable[[PyTree], PyTree]
# A number, which may be traced.
Number: TypeAlias = int | float | jax.Array

OPTIONS = 'beta1', 'beta2', 'weight_decay'  # Only some optimizers take these fields.


class Averaged(NamedTuple):
  """The state of an optimizer whose model is an average of the weights it trains.

  Attributes:
    num_updates: The number of updates.
    trained: The weights at which gradients are taken.
    inner: The state of the optimizer that trains them.
  """

  num_updates: jax.Array
  trained: PyTree
  inner: optax.OptState


def _adam(
  rate: optax.Schedule,
  beta1: float = 0.9,
  beta2: float = 0.999,
) -> optax.GradientTransformation:
  return optax.adam(rate, beta1, beta2)


def _adamw(
  rate: optax.Schedule,
  beta1: float = 0.9,
  beta2: float = 0.999,
  weight_decay: float = 1e-4,
  *,
  decayed: Mask,
) -> optax.GradientTransformation:
  return optax.adamw(rate, beta1, beta2, weight_decay=weight_decay, mask=decayed)


def _lion(
  rate: optax.Schedule,
  beta1: float = 0.9,
  beta2: float = 0.99,
  weight_decay: float = 1e-3,
  *,
  decayed: Mask,
) -> optax.GradientTransformation:
  return optax.lion(rate, beta1, beta2, weight_decay=weight_decay, mask=decayed)


def _sgd(
  rate: optax.Schedule,
  beta1: float | None = None,
) -> optax.GradientTransformation:
  return optax.sgd(rate, momentum=beta1)


def _muon(
  rate: optax.Schedule,
  beta1: float = 0.95,
  beta2: float = 0.999,
  weight_decay: float = 0.0,
  *,
  decayed: Mask,
  hidden: Mask,
) -> optax.GradientTransformation:
  """Returns Muon for the matrices of hidden layers, and NAdam for all other weights.

  `beta1` is for the matrices of hidden layers; NAdam has 0.9. `beta2` is for NAdam.
  An update has the size of Adam's (Liu et al., arXiv 2502.16982, eq. 4), so that both
  take the same learning rate.
  """
  matrix = optax.contrib.MuonDimensionNumbers(-2, -1)
  muon = optax.contrib.muon(
    rate,
    beta=beta1,
    adam_b2=beta2,
    consistent_rms=0.2,
    muon_weight_dimension_numbers=lambda params: jax.tree.map(
      lambda is_hidden, leaf: matrix if is_hidden and leaf.ndim > 1 else None,
      hidden(params),
      params,
    ),
  )
  if weight_decay == 0:
    return muon
  # The mask of optax covers the weights of Muon alone.
  decay = optax.add_decayed_weights(lambda step: -weight_decay * rate(step), decayed)
  return optax.chain(muon, decay)


def _schedule_free(
  rate: optax.Schedule,
  beta1: float = 0.9,
  beta2: float = 0.999,
  weight_decay: float = 0.0,
  *,
  decayed: Mask,
  scaled: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """Returns AdamW without a schedule, whose model is an average (arXiv 2405.15682)."""
  base = optax.chain(
    optax.scale_by_rms(beta2, eps=1e-8, eps_in_sqrt=False, bias_correction=True),
    optax.add_decayed_weights(weight_decay, decayed),
    optax.scale_by_learning_rate(rate),
    scaled,
  )
  # In optax 0.2.8 the weights of the average count steps from 1, and the base from 0.
  return _averaged(
    optax.contrib.schedule_free(base, lambda step: rate(step - 1), beta1),
    lambda _, state, trained, __: optax.contrib.schedule_free_eval_params(
      state, trained
    ),
  )


# Each function maps the learning rate, itself a function of the step, to an optimizer
# of optax. `build_optimizer` fills the further arguments that a function names. These
# are the `OPTIONS`; the masks `decayed` and `hidden`, which mark the weights that decay
# and those with this role; and `scaled`, which multiplies updates by the factors of
# `optimizer.scales`. A function that averages weights takes `scaled` and applies it
# before the average. The updates of other optimizers are scaled afterwards.
OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
  'adam': _adam,
  'adamw': _adamw,
  'lion': _lion,
  'sgd': _sgd,
  'muon': _muon,
  'schedule_free': _schedule_free,
}
# The updates of these do not depend on the shapes of arrays. The tuple has functions
# rather than names, since a user's own optimizer may replace one under its name.
_ELEMENTWISE = _adam, _adamw, _lion, _schedule_free, _sgd


def register_optimizer(name: str) -> Callable[[_Function], _Function]:
  """Returns a decorator that registers a function which makes an optimizer.

  The function is `make(learning_rate, ...) -> optax.GradientTransformation`, where
  `learning_rate` is a function of the step. Further arguments are recognised by their
  names: `beta1`, `beta2` and `weight_decay` are fields of `config.optimizer`, and need
  defaults, since a field that is None is not given; the masks `decayed` and `hidden`
  mark the weights that decay, and those with the role `hidden`; `scaled` is an
  optimizer that multiplies updates by the factors of `config.optimizer.scales`. A
  function that takes `scaled` must apply it itself. The updates of any other function
  are multiplied by the factors afterwards.

  A function of your own that has the name is replaced without a warning. The names of
  the library's own optimizers are refused.

  Args:
    name: The name of the optimizer in `config.optimizer.name`.

  Returns:
    A decorator, which returns the function unchanged.

  Raises:
    UserError: If the name is not a string or one of the library, or if the decorated
      object is not a function that takes these arguments.

  Example:
    >>> @zoo.register_optimizer('momentum')
    ... def momentum(learning_rate):
    ...   return optax.sgd(learning_rate, momentum=0.9)
    >>> config = zoo.default_config('yq_lsa')
    >>> config.optimizer.name = 'momentum'
  """
  masks = 'decayed', 'hidden', 'scaled'
  return entering(
    'optimizer',
    OPTIMIZERS,
    name,
    function=True,
    arguments=['learning_rate'],
    by_name=masks,
  )


def check_optimizer(section: OptimizerFields, num_steps: int) -> None:
  """Raises UserError for fields of the section `optimizer` that exclude each other."""
  name = check_registered('config.optimizer.name', section.name, OPTIMIZERS)
  warmup = warmup_steps(section, num_steps)
  decay = round(section.decay_share * num_steps)
  if warmup > num_steps:
    raise UserError(
      f'config.optimizer.warmup_steps is {warmup}; it must be ≤ train.num_steps, '
      f'which is {num_steps}'
    )
  if section.schedule == 'wsd' and warmup + decay > num_steps:
    raise UserError(
      f'config.optimizer.decay_share is {section.decay_share:g}; with {warmup} steps '
      f'of warm-up the decay is longer than train.num_steps, which is {num_steps}'
    )
  takes = signature(OPTIMIZERS[name]).parameters
  own = [option for option in OPTIONS if option in takes]
  for option in OPTIONS:
    if (value := getattr(section, option)) is not None and option not in own:
      others = [o for o in OPTIMIZERS if option in signature(OPTIMIZERS[o]).parameters]
      raise UserError(
        f'config.optimizer.{option} is {value:g}; {name!r} takes '
        f'{", ".join(own) or "none of these options"}, and {option} is taken by '
        f'{", ".join(map(repr, others))}'
      )
  if section.decay != 'hidden' and 'decayed' not in takes:
    raise UserError(
      f"config.optimizer.decay is {section.decay!r}; it must be 'hidden', the default, "
      f'for {name!r}, which takes no choice of the weights that decay'
    )
  if name == 'schedule_free' and section.schedule != 'constant':
    raise UserError(
      f"config.optimizer.schedule is {section.schedule!r}; it must be 'constant' for "
      "'schedule_free', which averages weights in place of a decay"
    )
  if name == 'schedule_free' and section.beta1 is not None and section.beta1 < 0.01:
    raise UserError(
      f'config.optimizer.beta1 is {section.beta1:g}; it must be ≥ 0.01 for '
      "'schedule_free', which divides rounding errors of the weights by it"
    )
  if name == 'schedule_free' and section.ema_decay is not None:
    raise UserError(
      f'config.optimizer.ema_decay is {section.ema_decay:g}; it must be None for '
      "'schedule_free', whose model is an average already"
    )


def averages(section: OptimizerFields) -> bool:
  """Returns whether the model is an average of weights, with the state `Averaged`."""
  return section.ema_decay is not None or OPTIMIZERS[section.name] is _schedule_free


def unfrozen(section: OptimizerFields, tree: PyTree, model: Model) -> list[jax.Array]:
  """Returns the arrays of weights or gradients whose factor in `scales` is not 0.

  Args:
    section: The section `optimizer`.
    tree: The weights of a model, or their gradients.
    model: The model.
  """
  if not section.scales:
    return jax.tree.leaves(tree)
  factors = jax.tree.leaves(_factors(section, model)(tree))
  pairs = zip(jax.tree.leaves(tree), factors, strict=True)
  return [leaf for leaf, factor in pairs if factor]


def build_optimizer(
  section: OptimizerFields,
  num_steps: Number,
  model: Model,
  in_shape: bool = False,
  learning_rate: Number | None = None,
) -> optax.GradientTransformation:
  """Returns the optimizer of a section `optimizer`, with its schedule and clipping.

  Options that are None have the defaults of optax.

  Args:
    section: The section `optimizer`.
    num_steps: The number of steps of the run. With the schedule `wsd` and a fixed
      number of warm-up steps it may be a traced float.
    model: The model, whose weights have roles and paths. Decay and Muon act on weights
      by their roles. A pattern names a weight that has several paths by any of them.
    in_shape: Whether the arrays keep their shapes, so that they can be sharded along
      any axis.
    learning_rate: A learning rate that replaces that of the section, and may be traced.

  Raises:
    UserError: If a registered function returns anything but an optimizer.
  """
  scales = section.scales
  make = OPTIMIZERS[section.name]
  takes = signature(make).parameters
  roles = {}
  if 'decayed' in takes or 'hidden' in takes:
    roles = parameter_roles(model)
  options = {option: getattr(section, option) for option in OPTIONS}
  options = {option: value for option, value in options.items() if value is not None}
  if 'decayed' in takes:
    parts, shared = section.decay.split(','), shared_paths(model)
    options['decayed'] = _by_path(
      lambda path: _decays(shared.get(path, (path,)), roles.get(path, 'hidden'), parts)
    )
  if 'hidden' in takes:
    options['hidden'] = _by_path(lambda path: roles.get(path, 'hidden') == 'hidden')
  scaled = _scaled(_factors(section, model)) if scales else optax.identity()
  if 'scaled' in takes:
    options['scaled'] = scaled
  optimizer = make(build_schedule(section, num_steps, learning_rate), **options)
  if not (hasattr(optimizer, 'init') and hasattr(optimizer, 'update')):
    raise UserError(
      f'the optimizer {section.name!r} returns {in_one_line(repr(optimizer), 80)}; it '
      'must return an optax.GradientTransformation, which has init and update'
    )
  if scales and 'scaled' not in takes:
    optimizer = optax.chain(optimizer, scaled)
  if section.clip_norm is not None:
    clip = optax.clip_by_global_norm(section.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  if section.ema_decay is not None:
    optimizer = _with_ema(optimizer, section.ema_decay)
  if 0 in scales.values():
    optimizer = _without_frozen(optimizer, _factors(section, model))
  elementwise = make in _ELEMENTWISE
  if not elementwise or 0 in scales.values():
    optimizer = _of_arrays(optimizer)
  if in_shape or not elementwise:
    return optimizer

  def update(
    updates: PyTree, state: PyTree, params: PyTree = None
  ) -> tuple[PyTree, PyTree]:
    # Arrays are flat here for the same reason as in `run_steps` of training/step.py.
    flat = jax.tree.map(
      lambda leaf: leaf.ravel() if leaf.ndim > 1 else leaf, (updates, state, params)
    )
    shapes = jax.tree.map(jnp.shape, (updates, state))
    return jax.tree.map(jnp.reshape, optimizer.update(*flat), shapes)

  return optax.GradientTransformation(optimizer.init, update)


def trained_weights(state: PyTree, weights: PyTree) -> PyTree:
  """Returns the weights at which gradients are taken, if the model `averages` them.

  Args:
    state: The state of the optimizer.
    weights: The weights of the model.
  """
  return jax.tree.map(
    lambda trained, own: own if isinstance(trained, optax.MaskedNode) else trained,
    optax.tree.get(state, 'trained'),
    weights,
    is_leaf=lambda node: isinstance(node, optax.MaskedNode),  # The weight is frozen.
  )


def check_groups(section: OptimizerFields, model: Model) -> None:
  """Checks the patterns of a config against the paths of a model's weights.

  Args:
    section: The section `optimizer`.
    model: The model, which may be abstract.

  Raises:
    UserError: If a pattern matches no weight, if `weight_decay` is above 0 and `decay`
      names no weight, or if `scales` freezes every weight.
  """
  scales = section.scales
  if not scales and not section.weight_decay and section.decay == 'hidden':
    return
  roles, shared = parameter_roles(model), shared_paths(model)
  weights = [(shared.get(path, (path,)), role) for path, role in roles.items()]
  patterns = [('scales', pattern) for pattern in scales]
  patterns += [
    ('decay', part) for part in section.decay.split(',') if part not in _GROUPS
  ]
  for field, pattern in patterns:
    if not any(_matches(paths, pattern) for paths, _ in weights):
      names = [*(_GROUPS if field == 'decay' else ()), *roles]
      near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
      raise UserError(
        f'config.optimizer.{field} has {pattern!r}, which matches no weight of the '
        f'model; the nearest are {", ".join(near)}'
      )
  parts = section.decay.split(',')
  if section.weight_decay and not any(
    _decays(paths, role, parts) for paths, role in weights
  ):
    raise UserError(
      f'config.optimizer.weight_decay is {section.weight_decay:g}, and '
      f"config.optimizer.decay, {section.decay!r}, names no weight of the model; 'all' "
      'names every one'
    )
  if scales and all(_factor(paths, scales) == 0 for paths, _ in weights):
    raise UserError(
      'config.optimizer.scales freezes every weight of the model; one at least must '
      'be left to train'
    )


_GROUPS = *ROLES, 'all'  # The field `decay` may name these, and patterns of paths.


def _matches(paths: Sequence[str], pattern: str) -> bool:
  """Returns whether a pattern names a weight by one of its paths."""
  return any(matches(path, pattern) for path in paths)


def _decays(paths: Sequence[str], role: str, parts: list[str]) -> bool:
  """Returns whether the parts of the field `decay` name a weight."""
  patterns = [part for part in parts if part not in _GROUPS]
  return not {role, 'all'}.isdisjoint(parts) or any(
    _matches(paths, pattern) for pattern in patterns
  )


def _factor(paths: Sequence[str], scales: Mapping[str, float]) -> float:
  """Returns the factor of a weight's learning rate: the product of all that match."""
  own = (factor for pattern, factor in scales.items() if _matches(paths, pattern))
  return math.prod(own, start=1.0)


def _factors(section: OptimizerFields, model: Model) -> Mask:
  """Returns a function from a tree of weights to their factors in `scales`."""
  shared = shared_paths(model)
  return _by_path(lambda path: _factor(shared.get(path, (path,)), section.scales))


def _by_path(function: Callable[[str], object]) -> Mask:
  """Returns a function from a tree of weights to the values of `function` at paths."""

  def of_path(path: tuple[Any, ...], _: object) -> object:
    # The path of a variable of NNX is followed by the field with its value.
    keys = (str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
    return function('/'.join(keys))

  return lambda tree: jax.tree_util.tree_map_with_path(of_path, tree)


def _scaled(factors: Mask) -> optax.GradientTransformation:
  """Returns an optimizer that multiplies the update of each weight by its factor."""
  return optax.stateless(
    lambda updates, _: jax.tree.map(jnp.multiply, updates, factors(updates))
  )


def _without_frozen(
  optimizer: optax.GradientTransformation, factors: Mask
) -> optax.GradientTransformation:
  """Returns the optimizer of the weights whose factor is not 0; the others stay."""
  return optax.partition(
    {'moves': optimizer, 'frozen': optax.set_to_zero()},
    lambda tree: jax.tree.map(
      lambda factor: 'moves' if factor else 'frozen', factors(tree)
    ),
  )


def _of_arrays(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
  """Returns an optimizer whose state has arrays, where NNX would have variables.

  Masks of optax hide some arrays, and variables of NNX need all of theirs.
  """
  return optax.GradientTransformation(
    lambda params: optimizer.init(nnx.as_pure(params)), optimizer.update
  )


def _with_ema(
  optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformation:
  """Returns an optimizer that averages past weights with exponential decay.

  The weights after a step count `decay` times as much as those after the next step. The
  average is corrected like Adam's moments, so that the initial weights do not count.
  """
  log_decay = math.log(decay) if decay else -math.inf

  def average(count: jax.Array, _: PyTree, trained: PyTree, before: PyTree) -> PyTree:
    # 1 − decay**count would lose almost all digits to cancellation if decay is near 1.
    rate = (1 - decay) / -jnp.expm1(count.astype(jnp.float32) * log_decay)
    return jax.tree.map(lambda mean, new: mean + rate * (new - mean), before, trained)

  return _averaged(optimizer, average)


def _averaged(
  optimizer: optax.GradientTransformation,
  average: Callable[[jax.Array, PyTree, PyTree, PyTree], PyTree],
) -> optax.GradientTransformation:
  """Returns an optimizer whose parameters are averages of those that another trains.

  Gradients are taken at `Averaged.trained`.

  Args:
    optimizer: The optimizer that trains.
    average: A function from the number of updates, the inner state and the weights
      after the update, and the averages before, to the averages.
  """

  def init(params: PyTree) -> Averaged:
    trained = jax.tree.map(jnp.copy, params)
    return Averaged(jnp.zeros((), jnp.int32), trained, optimizer.init(params))

  def update(
    updates: PyTree, state: Any, params: PyTree = None
  ) -> tuple[PyTree, Averaged]:
    count = state.num_updates + 1
    changes, inner = optimizer.update(updates, state.inner, state.trained)
    trained: Any = optax.apply_updates(state.trained, changes)
    means = average(count, inner, trained, params)
    moved = jax.tree.map(jnp.subtract, means, params)
    return moved, Averaged(count, trained, inner)

  return optax.GradientTransformation(init, update)


def warmup_steps(section: OptimizerFields, num_steps: Number) -> int:
  """Returns the steps of the warm-up: the smaller of the lengths that are given."""
  lengths = []
  if section.warmup_steps is not None:
    lengths.append(section.warmup_steps)
  if section.warmup_share is not None:
    lengths.append(int(section.warmup_share * num_steps))
  return min(lengths, default=0)


def build_schedule(
  section: OptimizerFields,
  num_steps: Number,
  learning_rate: Number | None = None,
) -> optax.Schedule:
  """Returns the learning rate by step: a linear warm-up, then what `schedule` says.

  Steps are counted from 0, so that the last step takes the rate at `num_steps` − 1. The
  decay reaches `final_share` at `num_steps`, one step later.
  """
  peak = section.learning_rate if learning_rate is None else learning_rate
  warmup, share = warmup_steps(section, num_steps), section.final_share
  match section.schedule:
    case 'cosine':
      schedule = optax.cosine_decay_schedule(
        peak, max(int(num_steps) - warmup, 1), share
      )
    case 'linear':
      length = max(int(num_steps) - warmup, 1)
      schedule = optax.linear_schedule(peak, share * peak, length)
    case 'wsd':
      schedule = _wsd(peak, share, num_steps - warmup, section.decay_share * num_steps)
    case _:
      schedule = optax.constant_schedule(peak)
  if warmup == 0:
    return schedule
  return optax.join_schedules(
    [optax.linear_schedule(0.0, peak, warmup), schedule], [warmup]
  )


def _wsd(
  peak: Number, final_share: float, num_steps: Number, decay_steps: Number
) -> optax.Schedule:
  """Returns a constant rate, then a linear decay up to `num_steps`.

  The steps may be traced. Schedules of optax need numbers of steps that are known when
  they are compiled.
  """

  def rate(step: ArrayLike) -> jax.Array:
    decay = jnp.maximum(jnp.round(jnp.asarray(decay_steps, jnp.float32)), 1.0)
    left = (num_steps - jnp.asarray(step, jnp.float32)) / decay
    return peak * (final_share + (1 - final_share) * jnp.clip(left, 0.0, 1.0))

  return rate

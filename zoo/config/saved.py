"""The comparison of a config with that of a saved run or model."""

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict

from zoo.config.defaults import FROM_THE_TASK
from zoo.config.read import fits_json, in_json, may_change
from zoo.config.run import Named
from zoo.core.registry import MIXERS, MODELS, parameters

# These fields of a model change how it is trained or where its weights start. They do
# not change what it computes from its weights. `hidden_features` shows in the shapes of
# the arrays, which are compared, too.
_SAME_FUNCTION = 'hidden_features', 'init_scale', 'num_trained_loops', 'remat'
_OPTIONS = 'mixer_options'


def differences(
  saved: Mapping[str, Any], content: Mapping[str, Any], resumes: bool = True
) -> list[str]:
  """Returns the fields in which a config differs from a saved one, with both values.

  Args:
    saved: The saved config, as JSON holds it.
    content: The other config, as JSON holds it.
    resumes: Whether to leave out the fields that may change when a run goes on, as
      zoo/config/run.py says. A field that only one of the configs has is not left
      out.
  """
  before, now = (flatten_dict(each, sep='.') for each in (saved, content))
  first, last = before.get('train.num_steps'), now.get('train.num_steps')
  longer = isinstance(first, int) and isinstance(last, int) and last > first
  free = may_change(more_steps=longer) if resumes else set()
  digest = before.get('train.init_from_digest')
  if digest is not None and digest == now.get('train.init_from_digest'):
    free |= {'train.init_from', 'train.init_from_step'}  # The source may lie elsewhere.
  names = sorted((before.keys() | now.keys()) - (free & before.keys() & now.keys()))
  return _differing(names, before, now, prefix='')


def changed_fields(
  saved: Mapping[str, Any], content: Mapping[str, Any]
) -> dict[str, list[Any]]:
  """Returns the old and the new value of each field that differs between two configs.

  Args:
    saved: The old config, as JSON holds it.
    content: The new config, as JSON holds it. A field that one of the two lacks is None
      there.
  """
  before, now = (flatten_dict(each, sep='.') for each in (saved, content))
  names = sorted(before.keys() | now.keys())
  pairs = {name: [before.get(name), now.get(name)] for name in names}
  return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def other_function(saved: Named, section: Named) -> list[str]:
  """Returns the fields in which a model computes otherwise than a saved one.

  Both models have the same arrays. Fields that one of them lacks have their defaults.

  Args:
    saved: The section `model` of the config of the saved model.
    section: The section `model` of the other config.
  """
  before, now = _model_fields(saved), _model_fields(section)
  names = sorted((before.keys() | now.keys()) - {*_SAME_FUNCTION})
  return _differing(names, before, now, prefix='model.')


def _differing(
  names: list[str], before: Mapping[str, Any], now: Mapping[str, Any], *, prefix: str
) -> list[str]:
  return [
    f'{prefix}{name} ({before.get(name, "absent")!r} there, '
    f'{now.get(name, "absent")!r} here)'
    for name in names
    if before.get(name, 'absent') != now.get(name, 'absent')
  ]


def _model_fields(section: Named) -> dict[str, Any]:
  """Returns the arguments of a model and of its mixers, as JSON holds them."""
  fields, model = section.content(), MODELS[section.name]
  known = default_arguments(model)
  for name in FROM_THE_TASK:
    known.pop(name, None)
  if _OPTIONS in parameters(model):
    mixers = fields.get('mixer', known.get('mixer')) or ()
    for mixer in mixers.split(',') if isinstance(mixers, str) else mixers:
      for name, default in default_arguments(MIXERS[mixer]).items():
        known[f'{_OPTIONS}.{name}'] = default
  known.pop(_OPTIONS, None)
  options = fields.pop(_OPTIONS, None) or {}
  return known | fields | {f'{_OPTIONS}.{name}': options[name] for name in options}


def default_arguments(cls: type) -> dict[str, Any]:
  """Returns the defaults of a constructor; None for those that JSON cannot hold."""
  return {
    name: in_json(parameter.default) if fits_json(parameter.default) else None
    for name, parameter in parameters(cls).items()
    if parameter.default is not parameter.empty
  }

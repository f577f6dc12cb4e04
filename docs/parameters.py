"""Writes docs/parameters.md, the role of each weight of each mixer and model.

python docs/parameters.py
"""

import functools
import pathlib
from typing import Any

from flax import nnx

import zoo
from zoo.core.roles import ROLES, parameter_roles

_FOLDER = pathlib.Path(__file__).resolve().parent
_HEAD = """# What weight decay and Muon act on

This page lists the role of every weight of every model and mixer with its default
options. For other options, such as another guess or another form of `deep_lsa`,
`zoo.core.roles.parameter_roles(model)` returns the roles of a model. By default the
role decides whether a weight decays, and which rule the optimizer `muon` uses for it:

| role | which weights | weight decay | rule of `muon` |
|---|---|---|---|
"""
_REST = """
To change this for a run, set two fields of its config
([how to](train.md#choose-which-weights-decay)). `config.optimizer.decay` names
other weights that decay, by their roles or their paths. `config.optimizer.scales`
multiplies the learning rate of weights by a factor; the factor 0 freezes them.

In a model of your own, modules say the roles of their weights
([how](model_interface.md#the-roles-of-the-weights)).

Muon works on matrices. It treats a fused kernel, such as `key_query` of `mamba2` or the
four gates of `lstm`, as one matrix. It treats an array that holds a matrix for each
head, such as `w_k` of `lsa`, head by head.

In the tables below each row is a model or a mixer, and each column a role. A cell lists
the paths of the weights with that role. `*` stands for the number of a layer. A bias
that stands beside a kernel is left out; its role is `vector`.
`python docs/parameters.py` writes this page.
"""
_MIXERS = 'These paths are within a transformer, below `layers/*/mixer`.'
_SIZES = {'num_features': 3, 'context_length': 4, 'num_heads': 2, 'num_outputs': 1}
# What models have only with some values of their arguments.
_GIVEN = {
  'deep_lsa': {'readout': 'linear'},
  'sequential': {'rule': 'gated_delta'},
  'transformer': {'feed_forward': 'swiglu'},
}


def page() -> str:
  """The page, in Markdown."""
  roles = ''.join(
    f'| `{role}` | {says} | {"yes | Muon" if role == "hidden" else "no | NAdam"} |\n'
    for role, says in ROLES.items()
  )
  parts = [_HEAD + roles + _REST, '## Models', '', *_table(_of_models())]
  parts += ['', '## Mixers', '', _MIXERS, '']
  return '\n'.join([*parts, *_table(_of_mixers())]) + '\n'


def _of_models() -> dict[str, dict[str, str]]:
  """The roles of each model's weights, without those of a transformer's mixers."""
  by_model = {}
  for name in zoo.list_models():
    taken = zoo.core.registry.parameters(zoo.core.registry.MODELS[name])
    arguments = {size: value for size, value in _SIZES.items() if size in taken}
    arguments |= {'num_layers': 2} if 'num_layers' in taken else {}
    arguments |= {'guess': 'linear'} if 'guess' in taken else {}
    roles = _roles(name, arguments | _GIVEN.get(name, {}))
    by_model[name] = {
      path: role for path, role in roles.items() if '/mixer/' not in path
    }
  return by_model


def _of_mixers() -> dict[str, dict[str, str]]:
  """The roles of each mixer's weights, by their paths within the mixer."""
  by_mixer, start = {}, 'layers/0/mixer/'
  for mixer in zoo.list_mixers():
    arguments = {'num_features': 3, 'context_length': 4, 'num_layers': 1, 'width': 32}
    roles = _roles('transformer', {**arguments, 'mixer': mixer}).items()
    by_mixer[mixer] = {
      path.removeprefix(start): role for path, role in roles if path.startswith(start)
    }
  return by_mixer


def _roles(name: str, arguments: dict[str, Any]) -> dict[str, str]:
  """The roles of the weights of a model with these arguments."""
  make = functools.partial(zoo.create_model, name, **arguments)
  return parameter_roles(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))


def _table(roles_of: dict[str, dict[str, str]]) -> list[str]:
  """A row for each name, with the paths of each role in a column of its own."""
  rows = [f'| | {" | ".join(f"`{role}`" for role in ROLES)} |', '|---' * 4 + '|']
  for name, roles in roles_of.items():
    paths = [path for path in roles if not _is_beside_kernel(path, roles)]
    cells = []
    for role in ROLES:
      own = (f'`{_any_layer(path)}`' for path in paths if roles[path] == role)
      cells.append(', '.join(dict.fromkeys(own)))
    rows.append(f'| `{name}` | {" | ".join(cells)} |')
  return rows


def _is_beside_kernel(path: str, roles: dict[str, str]) -> bool:
  """Whether a path is that of a bias of a layer, with the role that it should have."""
  layer, _, name = path.rpartition('/')
  if name != 'bias' or f'{layer}/kernel' not in roles:
    return False
  assert roles[path] == 'vector'
  return True


def _any_layer(path: str) -> str:
  """The path with a `*` for each number."""
  return '/'.join('*' if name.isdecimal() else name for name in path.split('/'))


if __name__ == '__main__':
  (_FOLDER / 'parameters.md').write_text(page(), encoding='utf-8')

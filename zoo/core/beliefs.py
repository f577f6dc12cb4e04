"""Beliefs: what the part of a prompt that is seen says of what the prompt came from."""

from __future__ import annotations

import dataclasses
import typing

import jax
from jaxtyping import Array, Float

from zoo.core import trees
from zoo.core.prompt import Prompt


@typing.no_type_check  # JAX also builds one from placeholders or stacked arrays.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Belief:
  """The exact posterior of what prompts were drawn from, at each of their tokens.

  `task.belief(prompt)` returns it. The belief at place i is that of a reader who knows
  the task, and has seen the first i examples and the features of the next one: what a
  model has seen when it predicts label i. The last place is that of the query.

  Attributes:
    values: The numbers, `[b, t, k]`, for b prompts and t = c + 1 places.
    names: What each of the k coordinates is, such as 'state 0'.
    kind: 'simplex' for probabilities that sum to 1, such as those of hidden states.
      'moments' for means and variances of numbers, such as those of weights, of which
      the names say which is which.

  Example:
    >>> task = zoo.create_task('hidden_markov', process='mess3', context_length=4)
    >>> belief = task.belief(task.sample(jax.random.key(0), 2))
    >>> belief.values.shape, belief.names, belief.kind
    ((2, 5, 3), ('state 0', 'state 1', 'state 2'), 'simplex')
    >>> belief.values.sum(axis=-1).round(5).tolist()[0]
    [1.0, 1.0, 1.0, 1.0, 1.0]
  """

  values: Float[Array, 'b t k']
  names: tuple[str, ...] = dataclasses.field(metadata={'static': True})
  kind: str = dataclasses.field(default='simplex', metadata={'static': True})

  def __repr__(self) -> str:
    """Returns the kind, the shape of the values, and the first names."""
    shown = ', '.join(self.names[:3]) + (', …' if len(self.names) > 3 else '')
    shape = [*self.values.shape]
    return f'Belief({self.kind}, {self.values.dtype}{shape}, {shown})'


@typing.runtime_checkable
class Reader(typing.Protocol):
  """An estimator that computes a posterior; a pytree, such as a `Baseline` is."""

  def belief(self, prompt: Prompt) -> Float[Array, 'b t k']:
    """Returns the posterior at each token of prompts."""
    ...


def values_of(reader: Reader, prompt: Prompt) -> Float[Array, 'b t k']:
  """Returns what a reader computes, by one compiled program."""
  return _program(trees.fresh(reader), prompt)


@jax.jit
def _program(reader: Reader, prompt: Prompt) -> Float[Array, 'b t k']:
  # A TPU, and tf32 on a GPU, would otherwise round the products.
  with jax.default_matmul_precision('highest'):
    return reader.belief(prompt)

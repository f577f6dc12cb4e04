"""Attribution patching: the loss after a value is replaced, to the first order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from zoo.core.errors import UserError
from zoo.core.prompt import Prompt
from zoo.probing.activations import calls_of, recorded
from zoo.probing.edit import ABLATED, edited
from zoo.probing.graph import HEADS, TOKENS, axis_of

# The mean gradient has so many steps from the corrupt to the clean prompts.
NUM_STEPS = 10
_Loss = Callable[[Array, Prompt], Array]
_Arrays = TypeVar('_Arrays')  # This is a tree of arrays.


def first_order_loss_changes(
  model: Any,
  clean: Prompt,
  corrupt: Prompt,
  axes: Mapping[str, str],
  kinds: Sequence[str],
  loss: _Loss,
  num_steps: int | None,
  heads: bool,
  tokens: bool,
) -> dict[str, dict[str, Float[Array, 'b h n']]]:
  """Returns each prompt's loss after a replacement minus that before it.

  To the first order this is Σ ∂L/∂v · (v' − v) over the entries of a value v that is
  replaced by v'. It is positive if the replacement raises the loss. A value that
  matters has a positive number for ablations, which start from the clean prompts. For
  `recovered`, which starts from the corrupt prompts, its number is negative. This
  function is called within another one that JAX traces.

  Args:
    model: A model with taps.
    clean: Prompts. Losses are measured against the labels of their queries.
    corrupt: As many prompts. For `recovered`, clean values replace their values.
    axes: The axes of the value at each site; an empty string where they are not known.
    kinds: Some of `zoo.probing.patch.REPLACEMENTS`.
    loss: A function of predictions and clean prompts that returns a number for each
      prompt.
    num_steps: None takes the slope ∂L/∂v at the value that is replaced. A number takes,
      for `recovered`, the mean slope at the midpoints of so many steps from the corrupt
      prompts to the clean ones.
    heads: Whether heads are kept apart.
    tokens: Whether tokens are kept apart.

  Returns:
    The changes of the loss by kind and site. The axes h and n have the length 1 where
    heads or tokens are not kept apart.
  """
  sites = [*axes]
  values, _ = recorded(model, clean, sites)
  loss_changes = {}
  slope_at_clean = None
  for kind in kinds:
    if kind == 'recovered':
      corrupt_values, _ = recorded(model, corrupt, sites)
      if num_steps is None:
        slope = _slopes(model, corrupt, clean, sites, loss)
      else:
        slope = _mean_slopes(model, corrupt, clean, sites, loss, num_steps)
      changes = {name: values[name] - corrupt_values[name] for name in values}
    else:
      if slope_at_clean is None:
        slope_at_clean = _slopes(model, clean, clean, sites, loss)
      slope = slope_at_clean
      changes = {name: ABLATED[kind](value) - value for name, value in values.items()}
    products = {name: slope[name] * change for name, change in changes.items()}
    loss_changes[kind] = {
      site: _summed(calls_of(products, site), axes[site], heads, tokens)
      for site in sites
    }
  return loss_changes


def _slopes(
  model: Any, prompt: Prompt, clean: Prompt, sites: Sequence[str], loss: _Loss
) -> dict[str, Array]:
  """Returns the gradient of each prompt's loss in the values at the sites, by call."""
  values, _ = recorded(model, prompt, sites)
  for name, value in values.items():
    if not jnp.issubdtype(value.dtype, jnp.floating):
      raise UserError(
        f'the value at the site {name!r} is {value.dtype}; a gradient needs numbers '
        "with a fraction: use method='patch'"
      )

  def total(added: dict[str, Array]) -> Array:
    def of_site(site: str) -> Callable[[Array], Array]:
      calls = iter(calls_of(added, site))
      return lambda value: value + next(calls)

    copy = edited(model, {site: of_site(site) for site in sites})
    return loss(copy(prompt), clean).sum()

  return jax.grad(total)(jax.tree.map(jnp.zeros_like, values))


def _mean_slopes(
  model: Any,
  corrupt: Prompt,
  clean: Prompt,
  sites: Sequence[str],
  loss: _Loss,
  num_steps: int,
) -> dict[str, Array]:
  """Returns the mean gradient along the straight line from corrupt to clean prompts."""

  def at(share: Array) -> dict[str, Array]:
    def between(first: Array, last: Array) -> Array:
      return first + share.astype(first.dtype) * (last - first)

    return _slopes(model, jax.tree.map(between, corrupt, clean), clean, sites, loss)

  nothing = jax.tree.map(jnp.zeros_like, recorded(model, clean, sites)[0])
  return mean_over_steps(at, nothing, num_steps, clean.x.dtype)


def mean_over_steps(
  at: Callable[[Array], _Arrays], nothing: _Arrays, num_steps: int, dtype: Any
) -> _Arrays:
  """Returns the mean of arrays at the midpoints of equal steps from 0 to 1.

  Args:
    at: Takes a number from 0 to 1, and returns a tree of arrays.
    nothing: Such a tree of zeros.
    num_steps: The number of steps.
    dtype: The type of the numbers.
  """

  def add(total: _Arrays, share: Array) -> tuple[_Arrays, None]:
    return jax.tree.map(jnp.add, total, at(share)), None

  shares = (jnp.arange(num_steps, dtype=dtype) + 0.5) / num_steps
  total, _ = jax.lax.scan(add, nothing, shares)
  return jax.tree.map(lambda array: array / num_steps, total)


def _summed(
  calls: Sequence[Array], axes: str, heads: bool, tokens: bool
) -> Float[Array, 'b h n']:
  """Returns the sum over all calls and all axes.

  The axes of heads and tokens that are kept apart remain.
  """
  kept = [
    axis_of(axes, letters) if wanted else None
    for letters, wanted in ((HEADS, heads), (TOKENS, tokens))
  ]
  total = 0
  for value in calls:
    others = [i for i in range(1, value.ndim) if i not in kept]
    order = [i for i in kept if i is not None]
    part = jnp.transpose(value, (0, *order, *others))
    part = part.sum(axis=tuple(range(1 + len(order), value.ndim)))
    shape = [1 if i is None else value.shape[i] for i in kept]
    total = total + part.reshape(len(value), *shape)
  return jnp.asarray(total)

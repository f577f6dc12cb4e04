"""Compiled programs, which are traced anew, and shared where they are equal.

A class or a helper may be redefined at any time, as in a cell of a notebook. The cache
of JAX finds a program by its function, and would hand out programs of the old code.
Here a program is found by what it computes: it is traced and lowered anew, and compiled
only if this process has no program of equal StableHLO. Tracing and lowering take about
a tenth of the time that compiling takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.extend.core
from jax.core import Tracer

# A jitted function, before or after it is compiled for arguments of some types.
Program: TypeAlias = jax.stages.Wrapped | jax.stages.Compiled

# The programs that were used last are kept, up to a number. On a CPU each takes some
# megabytes and a hundred maps of memory, of which Linux gives a process 65,530.
_executables: dict[Any, jax.stages.Compiled] = {}
_MOST = 128
# One of these is in the StableHLO of a program that calls Python. It is never shared:
# StableHLO has only a number for the function, which differs between programs. A TPU
# calls Python by sending and receiving.
_OF_PYTHON = 'callback', 'CustomSPMDPartitioning', 'stablehlo.send', 'stablehlo.recv'


def compiled(
  function: Callable[..., Any],
  num_static: int = 0,
  compiler_options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
  """Returns a function as a program, which is compiled unless an equal one is known.

  It is traced when it is first called with arguments of some types, by the code as it
  is then. Call `compiled` again to have it traced by newer code. Arrays among the
  arguments are inputs of the program, so that other weights, prompts and keys use it
  again. Arrays that the function has closed over are constants of the program.

  Args:
    function: The function; its arguments are pytrees, and given by position.
    num_static: The number of arguments, from the first, that are no pytrees. They can
      be hashed, and another one is another program.
    compiler_options: Options of XLA, as for `jax.jit`.

  Returns:
    A function of the same arguments.
  """
  # This program is used if it calls Python, and within another program.
  whole = jax.jit(
    function,
    static_argnums=tuple(range(num_static)),
    compiler_options=compiler_options,
  )
  traced_structures: list[Any] = []
  structures: dict[Any, Any] = {}  # Each jaxpr has results of this structure.
  ready: dict[Any, jax.stages.Compiled | None] = {}

  # The program has lists of arrays as inputs and outputs, since StableHLO does not know
  # pytrees. Unused inputs are kept, since it does not say which ones were dropped.
  def flat(static: tuple[Any, ...], structure: Any, *leaves: Any) -> list[Any]:
    arguments = jax.tree.unflatten(structure, leaves)
    results, structure = jax.tree.flatten(function(*static, *arguments))
    traced_structures.append(structure)
    return results

  flat_program = jax.jit(
    flat,
    static_argnums=(0, 1),
    keep_unused=True,
    compiler_options=compiler_options,
  )

  def run(*arguments: Any) -> Any:
    static, arrays = arguments[:num_static], arguments[num_static:]
    leaves, structure = jax.tree.flatten(arrays)
    is_traced = any(isinstance(leaf, Tracer) for leaf in leaves)
    if is_traced or jax.config.values['jax_disable_jit']:
      return whole(*arguments)
    # JAX traces only what this `flat_program` has not been called with.
    traced = flat_program.trace(static, structure, *leaves)
    if traced_structures:
      structures[traced.jaxpr] = traced_structures[-1]
      traced_structures.clear()
    places = tuple(map(_place, leaves))
    if (traced.jaxpr, places) not in ready:
      executable = _executable(traced, places, compiler_options)
      ready[traced.jaxpr, places] = executable
    executable = ready[traced.jaxpr, places]
    if executable is None:
      return whole(*arguments)
    return jax.tree.unflatten(structures[traced.jaxpr], executable(*leaves))

  return run


def _executable(
  traced: jax.stages.Traced,
  places: tuple[Any, ...],
  compiler_options: dict[str, Any] | None,
) -> jax.stages.Compiled | None:
  """Returns the executable of a traced program; None if it cannot be shared."""
  jaxpr = traced.jaxpr
  if len(jaxpr.in_avals) != len(places):
    # The function has closed over arrays of a program that is being traced.
    return None
  lowered = traced.lower()
  text = lowered.as_text()
  if any(word in text for word in _OF_PYTHON):
    return None
  # The text has all that is computed, with the values of constants; a printed jaxpr
  # lacks them.
  computed = hashlib.sha256(text.encode()).digest()
  # These types are in the key, since StableHLO has no random keys and no weak types.
  types = tuple(jaxpr.in_avals), tuple(jaxpr.out_avals)
  # Devices are in the key, since StableHLO has only the axes of a mesh.
  devices = places, tuple(_placements(jaxpr.jaxpr))
  options = tuple(sorted((compiler_options or {}).items()))
  settings = tuple(sorted(jax.config.values.items()))
  key = computed, types, devices, options, settings
  # The program that was used last is at the end.
  executable = _executables.pop(key, None) or lowered.compile()
  _executables[key] = executable
  if len(_executables) > _MOST:
    del _executables[next(iter(_executables))]
  return executable


def _place(leaf: Any) -> Any:
  """Returns where an array must stay; None if JAX may move it."""
  return leaf.sharding if getattr(leaf, 'committed', False) else None


def _placements(jaxpr: jax.extend.core.Jaxpr) -> Iterator[Any]:
  """Yields the shardings and meshes that the operations of a program name."""
  for equation in jaxpr.eqns:
    for parameter in jax.tree.leaves(equation.params):
      if isinstance(parameter, jax.sharding.Sharding | jax.sharding.Mesh):
        yield parameter
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _placements(inner)

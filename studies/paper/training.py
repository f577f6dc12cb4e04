"""Trains the models of the figures, with as few compiled programs as possible."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from studies.runner import Trainer, histories
from zoo.host.parts import Part
from zoo.training.sweeps import Row

Field = int | float | tuple  # the value of a config's field in a point


class Recipe(NamedTuple):
  """How models are trained that differ only in the fields of their points."""

  config: str  # as for `Trainer`; one without a variant trains to convergence
  evaluations: int = 1  # how often the risk is sampled during training
  eval_batches: int = 4
  checkpoints: int = 1  # number of checkpoints, spread evenly to the end of training

  @property
  def folder(self) -> str:
    """A separate folder name for each recipe."""
    name, _, variant = self.config.partition(':')
    return '-'.join([name, variant or 'default', *map(str, self[1:])])


class PaperPoint(NamedTuple):
  """A model that is trained once for every seed."""

  recipe: Recipe
  fields: tuple[tuple[str, Field], ...] = ()  # sorted by name


def point(recipe: Recipe, fields: Mapping[str, Field]) -> PaperPoint:
  """A point with fields of the config, such as `task.prior_mean`."""
  return PaperPoint(recipe, tuple(sorted(fields.items())))


class Runs(NamedTuple):
  """Finished runs by point, one for each seed, and what they were trained on."""

  rows: dict[PaperPoint, list[Row]]
  objective: str = 'sampled'

  def history(
    self, point: PaperPoint, field: str = 'exact_risk'
  ) -> tuple[list[int], list[list[float]]]:
    """The logged steps that have a field, and its values there for each seed."""
    return histories(self.rows[point], field)


def train_all(
  points: Iterable[PaperPoint],
  num_seeds: int,
  objective: str,
  train: Trainer,
  part: Part | None = None,
) -> Runs:
  """Trains every point once for each seed, unless it is finished in the folder.

  With a part, it trains only that part of the runs, and returns no runs. Raises the
  errors of `Trainer`.
  """
  recipes: dict[Recipe, list[PaperPoint]] = {}
  for member in dict.fromkeys(points):
    recipes.setdefault(member.recipe, []).append(member)
  rows: dict[PaperPoint, list[Row]] = {}
  for recipe, members in recipes.items():
    changes = [
      {**dict(member.fields), 'seed': seed}
      for member in members
      for seed in range(num_seeds)
    ]
    fields = _fields_of(recipe, objective, train)
    if recipe.checkpoints == 1:
      trained = train(recipe.folder, recipe.config, fields, changes, part)
    else:  # one by one, which saves checkpoints on the way
      trained = []
      for change in changes if part is None else part.of(changes):
        name = ','.join(f'{field}={value}' for field, value in change.items())
        trained += train(f'{recipe.folder}/{name}', recipe.config, fields, [change])
    if part is None:
      for start, member in enumerate(members):
        rows[member] = trained[start * num_seeds : (start + 1) * num_seeds]
  return Runs(rows, objective)


def _fields_of(recipe: Recipe, objective: str, train: Trainer) -> dict[str, object]:
  """The fields of the config that all runs of a recipe share."""
  num_steps = train.config(recipe.config).train.num_steps
  # With the exact objective, only recipes that plot sampled risks sample them.
  sampled = objective == 'sampled' or recipe.evaluations > 1
  fields: dict[str, object] = {
    'objective.name': objective,
    'eval.every': -(-num_steps // recipe.evaluations),
    'eval.num_batches': recipe.eval_batches if sampled else 0,
    'checkpoint.keep': recipe.checkpoints,
  }
  if recipe.checkpoints > 1 or objective == 'exact':  # exact steps take no time
    fields['checkpoint.every'] = -(-num_steps // recipe.checkpoints)
  return fields

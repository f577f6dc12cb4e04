"""Trains the checkpoints that ship again, and writes their cards and the index.

  python -m benchmarks.checkpoints               # 67 minutes, 57 of them for `tabular`
  python -m benchmarks.checkpoints lsa yq_lsa    # only these two

The old checkpoints are replaced only after all new ones are trained.
"""

import hashlib
import json
import pathlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from flax import nnx

import configs
from benchmarks.cards import CARD, COLUMNS, Card, card_row, read_cards
from launch import cli
from studies.atlas.measure import lowest_known
from studies.tabular.scores import Trial, compare
from studies.tabular.tables import shipped
from zoo import theory
from zoo.config.building import num_heads
from zoo.config.read import read, to_content
from zoo.config.run import Run
from zoo.core.errors import RunError, check_name
from zoo.host.files import write_atomically
from zoo.measure.curve import sample_losses
from zoo.measure.intervals import Estimate, estimate
from zoo.reports import Table
from zoo.storage.loading import SavedModel, load
from zoo.storage.saving import save
from zoo.storage.steps import SUMS, versions
from zoo.theory.exact import known_risk
from zoo.training import sweeps
from zoo.training.run import train

flags.adopt_module_key_flags(cli)
_OUT = flags.DEFINE(cli.Folder(), 'out', 'checkpoints', 'Folder of the checkpoints.')

INDEX = 'README.md'
# A model does not ship if its relative excess over the lowest known risk is larger. The
# first limit is for exact risks, the second for sampled ones.
TOLERANCE, SAMPLED_TOLERANCE = 0.005, 0.3
NUM_PROMPTS = 2**16  # A risk without a formula is sampled on so many prompts.

# By checkpoint: the name of its config, and the fields that are changed in it.
_EXACT = {'objective.name': 'exact'}
SHIPPED = {
  'lsa': ('lsa', _EXACT),
  **{
    f'multi_head_lsa_{heads}': ('multi_head_lsa', {'model.num_heads': heads, **_EXACT})
    for heads in (2, 5, 10, 11)
  },
  'yq_lsa': ('yq_lsa', _EXACT),
  'ltb': ('ltb', _EXACT),
  'transformer': (
    'transformer',
    {
      'model.width': 48,
      'model.num_heads': 4,
      'task.noise_std': 0.5,
      'train.batch_size': 128,
      'train.num_steps': 12000,
    },
  ),
  'tabular': ('tabular', {}),
}
# The tables on which `tabular` is measured, each with the rows of the context: their
# number, or their share.
_TABLES = ('diabetes', 50), ('diabetes', 100), ('iris', 0.5), ('wine', 0.5)
_TABLES = *_TABLES, ('breast_cancer', 0.5)

_INTRODUCTION = """\
# Checkpoints

This folder has trained models that you can load without training anything, each with a
card of what it is and how good it is. `zoo.load('checkpoints/yq_lsa')` opens one, and
`python -m launch.probe --checkpoint=checkpoints/yq_lsa` reports what it has learned.

From any folder, `checkpoints/NAME` opens the shipped model if the folder has no
`checkpoints/NAME` of its own, and a warning names the folder that is opened. If its
`checkpoints` has other models, so that one of your own was probably meant, the path is
refused, and the message gives the full path of the shipped model.

- `lsa`, `multi_head_lsa_*`, `yq_lsa` and `ltb` are linear attention in the setting of
  Table 1 of arXiv 2512.04268: d = C = 10, prior mean w\\* = [2, …, 2], no noise. They
  were trained on the exact risk.
- `transformer` is a GPT-2 of three layers of width 48, for linear regression with d =
  5, C = 10, prior mean 0 and noise of standard deviation 0.5.
- `tabular` is a transformer of rows, for tables of up to 32 features with a number or
  up to 10 classes to predict. Open it with `zoo.Regressor('checkpoints/tabular')` or
  `zoo.Classifier('checkpoints/tabular')` ([tables](../docs/tabular.md)).

How to read the table:

- *Exact risk* is the expected squared error over all prompts, computed from a formula.
  A dash means that there is no formula.
- *Lowest known* is the least risk that is known to be possible for models with the same
  guess, fixed or learned, and the same number of heads. For linear attention it is
  proved to be the infimum for each of them ([theory](../docs/theory_heads.md)), so no
  weights have a lower risk. For `transformer` it is
  the risk of ridge regression, which is Bayes there. For `tabular` none is known; its
  card has the scores of ten splits of four real tables beside those of other methods,
  each with half of a 95 % interval over the splits.
- *Relative excess* is risk / lowest known − 1. For `transformer` the excess is a mean
  over 65,536 prompts, and its card has the standard error.
"""

_CLOSING = """\
Each folder has a card, `card.json`: the config, the command that trains the model anew,
the seed, the figures to all digits, and the versions. Its field `sha256` is the
checksum of the file `SHA256SUMS` beside it, which has the checksum of every file that
is read.

`python -m benchmarks.checkpoints` trains all of them again, and writes this page. This
takes ten minutes on one core, and for `tabular` 57 minutes on two cores.
"""


def main(names: list[str]) -> None:
  recipes = {}
  for name in names or SHIPPED:
    config_name, fields = SHIPPED[check_name('checkpoint', name, SHIPPED)]
    config = sweeps.at_point(configs.get_config(config_name), fields)
    changes = [f'--config.{field}={value}' for field, value in fields.items()]
    words = ['python', '-m', 'launch.main', f'--config=configs/{config_name}.py']
    recipes[name] = config, shlex.join([*words, *changes])
  if not write_checkpoints(recipes, _OUT.value):
    print('stopped before the end; nothing is written')
    sys.exit(cli.STOPPED)


def write_checkpoints(
  recipes: Mapping[str, tuple[Run, str]], folder: pathlib.Path
) -> bool:
  """Trains each config, and writes checkpoints, cards and the index into a folder.

  Args:
    recipes: By name of a checkpoint, its config and the command that trains it.
    folder: The folder of the checkpoints.

  Returns:
    Whether the checkpoints were written. After SIGTERM nothing is written.

  Raises:
    RunError: If a model ends too far above the lowest known risk. Nothing is written.
  """
  with tempfile.TemporaryDirectory() as temporary:
    made = pathlib.Path(temporary)
    for name, (config, command) in recipes.items():
      workdir = made / 'runs' / name
      workdir.mkdir(parents=True)
      if train(config, workdir) is None:
        return False
      trained = load(workdir)
      save(trained.model, made / name, config, step=trained.step)
      _write_card(made / name, command)
    for name in recipes:
      shutil.rmtree(folder / name, ignore_errors=True)
      shutil.copytree(made / name, folder / name)
  write_atomically(folder / INDEX, index(read_cards(folder)))
  return True


def index(cards: Sequence[Card]) -> str:
  """Returns the page that lists all cards, in Markdown."""
  titles = ['checkpoint', *(name.replace('_', ' ') for name in COLUMNS), 'card']
  rows = []
  for card in cards:
    name, *figures = card_row(card)
    rows.append([f'`{name}`', *figures, f'[{CARD}]({name}/{CARD})'])
  table = Table(rows, titles).markdown(right=range(1, len(titles) - 1))
  return f'{_INTRODUCTION}\n{table}\n\n{_CLOSING}'


def scores_table(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
  """Returns the scores of the card of `tabular` in Markdown, for docs/tabular.md."""
  rows = []
  for name, methods in tables.items():
    for method, scores in methods.items():
      cells = [
        f'{scores[score][0]:.3f} ± {scores[score][1]:.3f}' if score in scores else '–'
        for score in ('r2', 'nll', 'accuracy', 'auc', 'log_loss')
      ]
      bold = '**' if method == 'tabular' else ''
      rows.append([name if bold else '', f'{bold}{method}{bold}', *cells])
  titles = ['table', 'method', 'R²', 'NLL, nats', 'accuracy', 'AUC', 'log loss, nats']
  return Table(rows, titles).markdown(right=range(2, len(titles)))


def _write_card(folder: pathlib.Path, command: str) -> None:
  """Measures a checkpoint as it is loaded, and writes its card."""
  saved = load(folder)
  config, name = read(saved.config), folder.name
  exact = known_risk(saved.model, saved.task)
  figures: dict[str, Any]
  if config.model.name == 'tabular':
    figures = _of_tables(folder)
  else:
    figures = _sampled(saved) if exact is None else _exact(saved, exact)
  excess = figures['relative_excess']
  allowed = SAMPLED_TOLERANCE if exact is None else TOLERANCE
  if excess is not None and excess > allowed:
    raise RunError(
      f'{name} ends {100 * excess:.3g} % above the lowest known risk, and '
      f'{100 * allowed:g} % is allowed; no checkpoint is written'
    )
  parameters = nnx.to_flat_state(nnx.state(saved.model, nnx.Param))
  card = {
    'name': name,
    'model': config.model.name,
    'command': command,
    'seed': config.seed,
    'step': saved.step,
    'num_heads': num_heads(config),
    'num_params': sum(leaf.get_value().size for _, leaf in parameters),
    'exact_risk': exact,
    **figures,
    'sha256': hashlib.sha256((folder / SUMS).read_bytes()).hexdigest(),
    'config': to_content(config),
    'versions': versions(),
  }
  (folder / CARD).write_text(json.dumps(card, indent=2) + '\n')


def _exact(saved: SavedModel, risk: float) -> dict[str, float]:
  """Returns the figures of linear attention, whose risk has a formula."""
  least = lowest_known(read(saved.config))
  assert least is not None
  optimum = theory.exact_risk(theory.optimal_rule(saved.task), saved.task)
  return {
    'lowest_known': least,
    'relative_excess': risk / least - 1,
    'optimal_risk': float(optimum),
  }


def _sampled(saved: SavedModel) -> dict[str, float]:
  """Returns the figures of other models: the excess over Bayes on the same prompts."""
  lower, upper = theory.bayes_risk(saved.task)
  predictors = {'model': saved.model, 'bayes': saved.task.baselines()['bayes']}
  losses = sample_losses(
    predictors, saved.task, NUM_PROMPTS, lengths=[saved.task.context_length]
  )
  excess = estimate(losses['model'] - losses['bayes'])
  least = (lower + upper) / 2
  return {
    'lowest_known': least,
    'relative_excess': excess.mean / least,
    'sampled_risk': least + excess.mean,
    'sampled_risk_stderr': excess.stderr,
    'num_prompts': NUM_PROMPTS,
  }


def _of_tables(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the scores of a model of tables, and of other methods, on real tables.

  A score is a mean over ten splits, with half of the width of its 95 % interval.
  """
  tables: dict[str, Any] = {}
  with tempfile.TemporaryDirectory() as temporary:
    for name, share in _TABLES:
      trial = Trial(shipped(name), str(folder), 10, share)
      out = pathlib.Path(temporary, f'{name}-{share}')
      found = compare(trial, out)
      if found is None:
        raise RunError('stopped before the end; no checkpoint is written')
      tables[f'{name}, {trial.num_rows} rows'] = {
        row.method: {
          score: [value.mean, value.half]
          for score, value in row._asdict().items()
          if isinstance(value, Estimate)
        }
        for row in found.rows
      }
  return {'lowest_known': None, 'relative_excess': None, 'tables': tables}


if __name__ == '__main__':
  cli.run(main, takes_names=True)

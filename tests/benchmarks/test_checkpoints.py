"""The checkpoints that ship, and what their cards say of them."""

# Cards and rows are read from JSON and CSV files.
# pyright: reportCallIssue=false, reportArgumentType=false

import hashlib
import json
import pathlib
import re
import shlex
import shutil
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

import configs
import zoo
from benchmarks import cards, checkpoints
from studies.atlas.measure import lowest_known
from tests.compare import refuses
from tests.launch.processes import ROOT
from tests.marks import mostly_full
from tests.training.runs import small_config
from zoo import theory
from zoo.config.read import read, to_content
from zoo.config.saved import differences
from zoo.storage.steps import damage_of
from zoo.training.experiment import validate

pytestmark = pytest.mark.usefixtures('promotion_that_optax_needs')

FOLDER = ROOT / 'checkpoints'
WEIGHTS = ROOT / 'tests' / 'data' / 'shipped_weights.json'  # digests of all arrays
SHIPPED = {
  path.parent.name: json.loads(path.read_text())
  for path in sorted(FOLDER.glob(f'*/{cards.CARD}'))
}


EXACT = [name for name, card in SHIPPED.items() if card['exact_risk'] is not None]


def test_what_ships_is_what_was_promised():
  heads = {f'multi_head_lsa_{number}' for number in (2, 5, 10, 11)}
  assert SHIPPED.keys() == {'lsa', 'yq_lsa', 'ltb', 'transformer', 'tabular', *heads}
  assert SHIPPED.keys() == checkpoints.SHIPPED.keys()
  folders = [path for path in FOLDER.iterdir() if path.is_dir()]
  assert {path.name for path in folders} - {'runs'} == SHIPPED.keys()


def test_the_weights_that_ship_are_these_to_the_bit():
  digests = {}
  for name in SHIPPED:
    digest = hashlib.sha256()
    for path, variable in nnx.to_flat_state(nnx.state(zoo.load(FOLDER / name).model)):
      array = np.asarray(variable.get_value())
      digest.update(f'{path} {array.dtype} {array.shape}'.encode())
      digest.update(array.tobytes())
    digests[name] = digest.hexdigest()
  assert digests == json.loads(WEIGHTS.read_text())


def opened(name: str) -> tuple[dict[str, Any], Any]:
  """A card and its model, once what both say is found to be the same."""
  card, folder = SHIPPED[name], FOLDER / name
  saved = zoo.load(folder)
  validate(saved.config)
  assert saved.config.to_dict() == card['config']
  assert (saved.step, saved.config.seed) == (card['step'], card['seed'])
  manifest = (folder / 'SHA256SUMS').read_bytes()
  assert hashlib.sha256(manifest).hexdigest() == card['sha256']
  return card, saved


@pytest.mark.slow  # the lowest known risk for few heads is a search
@pytest.mark.parametrize('name', mostly_full(['lsa', 'multi_head_lsa_11'], EXACT))
def test_a_card_is_true(name):
  card, saved = opened(name)
  assert (saved.config.task.num_features, saved.config.task.context_length) == (10, 10)
  assert saved.task.prior_mean.tolist() == [2.0] * 10
  risk = theory.exact_risk(saved.model, saved.task)
  assert abs(risk - card['exact_risk']) < 1e-6
  least = lowest_known(read(saved.config))
  assert least is not None
  assert abs(least - card['lowest_known']) < 1e-6
  # Below the lowest known risk it can only be by rounding, in float64.
  assert -1e-9 < risk / least - 1 < 0.005
  if 'initial_guess' not in card['config']['model']:
    # That the learned guess may be taken to be the prior mean: no rule is better.
    assert abs(least - card['optimal_risk']) < 1e-9


@pytest.mark.slow
def test_the_card_of_a_transformer_is_true():
  """By the direct mean over other prompts, without the difference from Bayes."""
  card, saved = opened('transformer')
  curve = zoo.curve(saved.model, saved.task, 2**13, seed=1)
  errors = np.hypot(curve.stderr[-1], card['sampled_risk_stderr'])
  assert abs(curve.mean[-1] - card['sampled_risk']) < 4 * errors
  lower, upper = theory.bayes_risk(saved.task)
  assert lower <= card['lowest_known'] <= upper < 1.001 * lower
  excess = card['sampled_risk'] / card['lowest_known'] - 1
  assert abs(card['relative_excess'] - excess) < 1e-9
  assert 0 < excess < checkpoints.SAMPLED_TOLERANCE


def test_the_command_of_a_card_trains_its_config():
  for card in SHIPPED.values():
    python, m, module, config_flag, *flags = shlex.split(card['command'])
    assert (python, m, module) == ('python', '-m', 'launch.main')
    path = pathlib.Path(config_flag.removeprefix('--config='))
    assert path.parent == pathlib.Path('configs')
    config: Any = configs.get_config(path.stem)
    for flag in flags:
      field, _, value = flag.removeprefix('--config.').partition('=')
      section, _, leaf = field.rpartition('.')
      config[section][leaf] = config[section].get_type(leaf)(value)
    assert not differences(card['config'], to_content(config))


def test_the_index_is_that_of_the_cards():
  written = (FOLDER / checkpoints.INDEX).read_text()
  assert written == checkpoints.index(cards.read_cards(FOLDER))


def test_what_ships_is_small_complete_and_of_no_machine():
  if shutil.which('git') is None:
    pytest.skip('git is not installed')
  listed = subprocess.run(
    ['git', 'ls-files', '-z', 'checkpoints'], cwd=ROOT, capture_output=True, check=False
  )
  if listed.returncode:
    pytest.skip('not a git checkout')
  names = listed.stdout.decode().rstrip('\0').split('\0')
  assert not [name for name in names if name.startswith('checkpoints/runs')]
  contents = {name: (ROOT / name).read_bytes() for name in names}
  sizes = {'tabular': 0, 'transformer': 0}
  for name, content in contents.items():
    folder = name.split('/')[1]
    sizes[folder] = sizes.get(folder, 0) + len(content)
  assert sizes['tabular'] <= 2**20
  assert sizes['transformer'] < 2**19
  assert sum(sizes.values()) - sizes['tabular'] < 3 * 2**20
  for name in SHIPPED:
    sums = (FOLDER / name / 'SHA256SUMS').read_text().splitlines()
    files = {f'checkpoints/{name}/{line.partition("  ")[2]}' for line in sums}
    assert {*files, f'checkpoints/{name}/{cards.CARD}'} <= contents.keys()
  for name, content in contents.items():
    assert not re.search(rb'/(root|home|tmp|work|Users)/|file://', content), name


@pytest.mark.slow
@pytest.mark.full
def test_what_was_there_is_replaced_by_what_is_trained_anew(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoints, 'TOLERANCE', 100.0)
  config = small_config('yq_lsa', objective__name='exact')
  for seed in (0, 1):
    config.seed = seed
    checkpoints.write_checkpoints({'short': (config, f'seed {seed}')}, tmp_path)
    card = json.loads((tmp_path / 'short' / cards.CARD).read_text())
    assert (card['seed'], card['command']) == (seed, f'seed {seed}')
    assert zoo.load(tmp_path / 'short').step == 12
  assert sorted(path.name for path in tmp_path.iterdir()) == ['README.md', 'short']


def test_what_is_no_card_is_named(tmp_path):
  path = tmp_path / 'lsa' / cards.CARD
  path.parent.mkdir()
  path.write_text('{"name": "lsa"}')
  with refuses(f'{path} is not a card', 'missing required field `model`'):
    cards.read_cards(tmp_path)


@pytest.mark.parametrize('name', mostly_full(['lsa'], EXACT))
def test_what_ships_opens_and_has_the_risk_of_its_card(name):
  saved = zoo.load(FOLDER / name)
  assert damage_of(FOLDER / name) is None
  assert saved.step == SHIPPED[name]['step']
  risk = theory.exact_risk(saved.model, saved.task)
  assert abs(risk - SHIPPED[name]['exact_risk']) < 1e-6


def test_the_card_of_tables_has_the_scores_of_all_methods():
  """Those of a frozen model; the headline `tabular` measures them again."""
  tables = SHIPPED['tabular']['tables']
  assert [*tables] == [
    'diabetes, 50 rows',
    'diabetes, 100 rows',
    'iris, 75 rows',
    'wine, 89 rows',
    'breast_cancer, 284 rows',
  ]
  for name, methods in tables.items():
    first, *others = methods
    assert first == 'tabular'
    assert {'random forest', 'gradient boosting', 'nearest neighbours'} <= {*others}
    score = 'r2' if name.startswith('diabetes') else 'accuracy'
    for scores in methods.values():
      mean, half = scores[score]
      assert 0 < half < mean < 1
  page = (ROOT / 'docs' / 'tabular.md').read_text()
  assert checkpoints.scores_table(tables) in page


@pytest.mark.slow
def test_the_scores_of_a_card_are_those_of_a_loop_by_hand():
  saved = zoo.load(FOLDER / 'tabular')
  x, y = load_wine(return_X_y=True)
  right = []
  for seed in range(10):
    rows, queries, labels, answers = train_test_split(
      x, y, train_size=89, random_state=seed, stratify=y
    )
    logits = saved.model.predict_rows(
      jnp.asarray(rows[None], jnp.float32),
      jax.nn.one_hot(labels[None], 3),
      jnp.asarray(queries[None], jnp.float32),
    )
    right.append(np.mean(np.argmax(logits[0], axis=-1) == answers))
  mean, _ = SHIPPED['tabular']['tables']['wine, 89 rows']['tabular']['accuracy']
  # A row on a boundary may fall to either side by rounding.
  assert np.mean(right) == pytest.approx(mean, abs=0.003)

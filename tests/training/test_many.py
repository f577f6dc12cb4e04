"""Seeds, learning rates and initial scales side by side: each point as if alone."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import zoo
from tests.marks import FULL, mostly_full
from tests.training.runs import compile_init, small_config
from tests.training.test_step import Run
from zoo.host.interruption import Interruption
from zoo.sharding import on_mesh
from zoo.training import against_baselines
from zoo.training.against_baselines import compare_models
from zoo.training.compilation import make_training
from zoo.training.experiment import build
from zoo.training.sweeps import many
from zoo.training.sweeps import run as sweep_run
from zoo.training.sweeps.stacking import make_many, unstack


def _config(**changes):
  config = small_config('transformer', **changes)
  config.model.num_layers, config.model.width = 1, 8
  return config


def test_models_of_all_seeds_are_compared_on_the_same_prompts(monkeypatch, unchecked):
  asked = []

  def compare(models, task, num_prompts, seed, is_checked):
    weights = [model.w[...].tolist() for model in models]
    asked.append((seed, weights))
    return [{'model': seed, 'w': w[0]} for w in weights]

  monkeypatch.setattr(against_baselines, 'compare_all', compare)
  changes = {'eval__num_compared': 16, 'eval__seed': 5}
  experiments = [build(_config(seed=seed, **changes)) for seed in (3, 1, 3)]
  graph, models = nnx.split(nnx.Dict(w=nnx.Param(np.array([[0, 0], [1, 1], [2, 2]]))))
  experiments[0] = dataclasses.replace(experiments[0], graphs={'model': graph})
  comparisons = compare_models(experiments, models, is_stacked=True)
  assert asked == [(5, [[0, 0], [1, 1], [2, 2]])]
  assert comparisons == [{'model': 5, 'w': i} for i in range(3)]


def test_a_point_that_has_a_summary_has_its_weights(monkeypatch, tmp_path):
  """A launch that is killed in between saves the weights of the others later."""
  members = [
    many.Member(build(_config(seed=i)), tmp_path / f'seed={i}') for i in range(2)
  ]

  def save(folder, *arguments):
    if folder == members[1].workdir:
      raise InterruptedError

  summaries = [{'model': 'transformer', 'step': 12, 'history': []} for _ in members]
  for name, result in (
    ('compile_training', None),
    ('train_many', (None, summaries)),
    ('unstack', [None, None]),
    ('finished_event', None),
  ):
    monkeypatch.setattr(sweep_run, name, lambda *_, result=result: result)
  monkeypatch.setattr(sweep_run, 'save_result', save)
  for _, folder in members:
    folder.mkdir()
  with pytest.raises(InterruptedError):
    sweep_run._train_stacked(members, tmp_path, '1/1', Interruption(), [])
  assert [*tmp_path.rglob('summary.json')] == [members[0].workdir / 'summary.json']


_OTHER = {'seed': 1, 'optimizer__learning_rate': 2e-2}


def test_times_of_a_program_end_before_the_comparison(monkeypatch, unchecked, tmp_path):
  now = [2.0]

  class Clocked:
    wall_time = property(lambda self: now[0])

  def compare(*arguments, **options):
    now[0] = 9.0
    return [None, None]

  def summarise(experiment, risks, speed, flops, seconds, history):
    return {'speed': speed, 'seconds': seconds}

  monkeypatch.setattr(many, 'compare_models', compare)
  monkeypatch.setattr(many, 'summarise', summarise)
  experiment = build(_config())
  training: Any = SimpleNamespace(experiment=experiment, evaluation=None, flops=0)
  training.uses_statistics = False
  loop: Any = SimpleNamespace(state={'model': None}, step=1, speed=lambda: now[0])
  members = [many.Member(experiment, tmp_path)] * 2
  risks: Any = [None, None]
  records: Any = [Clocked(), Clocked()]
  finite = np.array([True, True])
  summaries: Any = many.summarised_many(
    training, members, loop, finite, risks, records, []
  )
  for summary in summaries:
    assert (summary['speed'], summary['seconds']) == (2.0, 2.0)


_GROWING = {f'curriculum__{field}': 1 for field in ('features', 'examples', 'loops')}
_MUON = {'optimizer__name': 'muon', 'optimizer__ema_decay': 0.8}
_SCHEDULE_FREE = {'optimizer__name': 'schedule_free', 'optimizer__schedule': 'constant'}
_LOOPS = {'model__num_loops': 2, 'model__num_trained_loops': 2, 'curriculum__every': 3}
# What two points share, and in what the second one differs. These optimizers have a
# state that is more than Adam's, and a model that is an average.
_PAIRS = [
  ({'model__mixer': 'rwkv7', **_SCHEDULE_FREE}, _OTHER),
  ({**_LOOPS, **_GROWING, **_MUON}, _OTHER),
]
_MIXERS = [{'model__mixer': mixer} for mixer in zoo.list_mixers()]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('shared', 'other'),
  [
    *mostly_full(_PAIRS[1:], _MIXERS, [{'seed': 1}]),
    pytest.param(*_PAIRS[0], marks=FULL),
  ],
  ids=str,
)
def test_transformers_side_by_side_are_what_they_are_alone(shared, other, monkeypatch):
  compile_init(monkeypatch)
  experiments = [build(_config(**shared)), build(_config(**shared | other))]

  def weights(training, num_steps):
    with on_mesh(experiments[0].mesh, experiments[0].config):
      run = Run.of(training)
      run.train(0, num_steps)
    return jax.device_get(run.state)

  def flat(state: Any):
    leaves = jax.tree.leaves(state['model'])
    return np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(float)

  together = [*unstack(experiments, weights(make_many(experiments), 4))]
  for experiment, state in zip(experiments, together, strict=True):
    training = make_training(experiment)
    start, alone = flat(weights(training, 0)), flat(weights(training, 4))
    # Sums in another order; Adam moves weights whose gradient is rounding as well.
    assert np.linalg.norm(flat(state) - alone) < 1e-2 * np.linalg.norm(alone - start)

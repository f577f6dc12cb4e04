"""Every field of every task refuses what is no number, and what is beyond its range."""

import jax
import numpy as np
import pytest

import zoo
from configs import common
from tests.compare import refuses
from tests.marks import mostly_full

_GIVEN = {'num_features': 3, 'context_length': 4}
_NO_INTEGER = 1.5, 'word', float('nan'), True
_NO_NUMBER = 'word', float('nan'), float('inf')
# Fields that hold arrays, sections or files, which tests of these tasks refuse.
_ELSEWHERE = {
  ('arrays', 'path'),
  ('arrays', 'sha256'),
  ('mixture', 'parts'),
  ('mixture', 'weights'),
}
# The first numbers beyond a range, where it is not that of all sizes, ≥ 1.
_BEYOND = {
  ('arrays', 'held_out_share'): (-0.01, 1.01),
  ('arrays', 'seed'): (-1,),
  ('gaussian_clusters', 'num_classes'): (1,),
  ('hidden_markov', 'num_states'): (1,),
  ('hidden_markov', 'num_symbols'): (1,),
  ('hidden_markov', 'persistence'): (-1e-3, 1.0),
  ('hidden_markov', 'seed'): (-1,),
  ('labelled_clusters', 'burstiness'): (-1, 3),  # which does not divide 4
  ('labelled_clusters', 'num_classes'): (0, 33),  # not a multiple of 32 labels
  ('labelled_clusters', 'num_labels'): (1,),
  ('labelled_clusters', 'seed'): (-1,),
  ('labelled_clusters', 'within'): (0.0, 9e-16, 2e15),
  ('labelled_clusters', 'zipf'): (-1e-3,),
  ('linear_regression', 'noise_std'): (-1e-3, 2e19),
  ('markov_chain', 'order'): (0, 5),  # more than the 4 examples
  ('markov_chain', 'seed'): (-1,),
  ('modular_addition', 'modulus'): (1,),
  ('modular_arithmetic', 'modulus'): (1,),
  ('outlier_regression', 'outlier_probability'): (-0.01, 1.01),
  ('permutations', 'num_elements'): (1,),
  ('quadratic_regression', 'noise_std'): (-1e-3, 9e-19, 2e19),
  ('relu_network', 'noise_std'): (-1e-3, 9e-19, 2e19),
  ('rotated_regression', 'noise_std'): (-1e-3, 9e-19, 2e19),
  ('sparse_regression', 'noise_std'): (-1e-3, 9e-6, 2e15),
  ('task_pool', 'noise_std'): (-1e-3, 9e-11, 2e15),
  ('task_pool', 'seed'): (-1,),
  ('urns', 'concentration'): (0.0, -1.0, 9e-31),
  ('urns', 'num_symbols'): (1,),
  ('urns', 'seed'): (-1,),
}
FIELDS = [
  (name, field, common.task_section(name).get_type(field))
  for name in zoo.list_tasks()
  for field in common.task_section(name)
  if field != 'name' and (name, field) not in _ELSEWHERE
]


@pytest.mark.parametrize(('name', 'field', 'kind'), FIELDS)
def test_a_task_refuses_what_is_beyond_the_range_of_a_field(
  name, field, kind, unchecked
):
  fields = common.task_section(name)
  sizes = {size: number for size, number in _GIVEN.items() if size in fields}
  bad: list[object] = [*_BEYOND.get((name, field), (0,) if kind is int else ())]
  bad += {int: _NO_INTEGER, float: _NO_NUMBER, str: ('no such word', 3)}.get(kind, ())
  if kind is object:
    bad += ['two', [1.0, 2.0], [1.0, float('nan'), 2.0]]
  for value in bad:
    with refuses(field):
      zoo.create_task(name, **sizes | {field: value})


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'fields'),
  mostly_full(
    [
      ('sparse_regression', {'noise_std': 1e-5, 'num_nonzero': 2}),
      ('task_pool', {'noise_std': 1e-10}),
      ('labelled_clusters', {'within': 1e-15, 'burstiness': 2}),
    ],
    [
      ('sparse_regression', {'noise_std': 1e15, 'num_nonzero': 2}),
      ('task_pool', {'noise_std': 1e15}),
      ('quadratic_regression', {'noise_std': 1e-18}),
      ('rotated_regression', {'noise_std': 1e19}),
      ('labelled_clusters', {'within': 1e15, 'burstiness': 2}),
    ],
  ),
)
def test_at_the_ends_of_a_range_baselines_are_finite(name, fields):
  task = zoo.create_task(name, **_GIVEN, **fields)
  prompt = task.sample(jax.random.key(0), 64)
  for baseline in task.baselines().values():
    assert np.isfinite(zoo.predict(baseline, prompt)).all()

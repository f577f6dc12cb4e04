"""Training compiled for TPU slices that are not there; in processes of their own."""

import importlib.metadata
import importlib.util
import json
import sys

import pytest

from launch import slices
from tests.compare import refuses
from tests.launch.processes import launch, run
from tests.marks import mostly_full
from tests.training.runs import small_config
from zoo.core.errors import CONSTRAINTS

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None,
  reason="libtpu is not installed: pip install '.[tpu]'",
)


@pytest.fixture
def reports(cache, tmp_path):
  """The reports of launch.aot on a config, and its answer."""

  def run(config: str, topology: str, *flags: str):
    out = tmp_path / 'report.json'
    name, colon, variant = config.partition(':')
    file = f'configs/{name}.py{colon}{variant}'
    flags_of_report = f'--config={file}', f'--topology={topology}', f'--json={out}'
    answer = launch(*flags_of_report, *flags, cache=cache, module='launch.aot')
    assert 'Traceback' not in answer.stderr, answer.stderr
    return json.loads(out.read_text()), answer

  return run


@pytest.fixture
def report(reports):
  """The only report, and the answer."""

  def run(*arguments: str):
    (plan,), answer = reports(*arguments)
    return plan, answer

  return run


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
  'config',
  mostly_full(
    ['deep_lsa'], ['transformer:looped,gpt2_tiny', 'transformer', 'gru', 'mlp_mixer']
  ),
)
def test_general_architectures_are_planned(report, config):
  plan, answer = report(config, 'v5e:2x2')
  assert answer.returncode == 0, answer.stderr
  assert plan['fits']
  # The batch is shared by the devices: all that they exchange is the gradient, and no
  # weight is gathered.
  assert 'all-gather' not in plan['collectives']


def parameter_bytes(heads: int, d: int) -> int:
  return 4 * 4 * heads * (d + 1) ** 2


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(
  ('config', 'topology', 'guess_is_trained'),
  mostly_full(
    [('yq_lsa', 'v5p:2x2x1', True)],
    [
      ('lsa', 'v4:4x8x8', False),
      ('multi_head_lsa', 'v5e:16x16', False),
      ('ltb', 'v6e:4x8', True),
    ],
  ),
)
def test_data_parallel_steps_reduce_one_gradient_and_gather_nothing(
  report, config, topology, guess_is_trained
):
  plan, answer = report(config, topology)
  assert answer.returncode == 0, answer.stderr
  assert plan['fits']
  assert plan['num_devices'] == plan['mesh']['data']
  assert plan['donated_bytes'] >= plan['state_bytes']
  # The gradient once, with the loss: of the rule's coefficients for each entry of the
  # prompts' statistics, (d + 1)(d + 2)/2 and, where the guess is trained, 1 for what is
  # constant, in each of d + 1 rows. No prompt leaves its device.
  gradient = 4 * 11 * (66 + guess_is_trained)
  assert plan['collectives'] == {'all-reduce': {'count': 1, 'bytes': gradient + 4}}


HEADS = '--config.model.num_heads=512', '--config.mesh.model=4'
FSDP = '--config.mesh.fsdp=True'


@needs_libtpu
@pytest.mark.slow
def test_with_fsdp_each_device_has_heads_of_its_own(report):
  plan, _ = report('multi_head_lsa', 'v5e:4x4', *HEADS, FSDP)
  # Each of 16 devices has 32 heads, and computes what they add to the learning rule.
  assert 0 <= plan['state_bytes'] - 3 * parameter_bytes(512, 10) // 16 < 200
  assert plan['donated_bytes'] >= plan['state_bytes']
  assert 'all-gather' not in plan['collectives']


@needs_libtpu
@pytest.mark.slow
@pytest.mark.full  # libtpu tries for some 40 s to make it fit
def test_what_cannot_fit_is_said_with_the_reason(report):
  plan, answer = report(
    *('multi_head_lsa', 'v5e:2x2', '--config.model.num_heads=2000000'),
    *('--config.task.num_features=10', '--config.task.context_length=10'),
    '--config.train.batch_size=64',
  )
  assert answer.returncode == 1
  assert not plan['fits']
  error = answer.stderr.splitlines()[-1]
  assert error.startswith('error: training does not fit on v5e:2x2: Ran out of memory')
  assert '15.75G' in error  # of each chip


@pytest.mark.full
@needs_libtpu
@pytest.mark.slow
def test_the_memory_plan_of_scale_holds(report):
  plan, answer = report('scale', 'v5e:4x8')
  assert answer.returncode == 0, answer.stderr
  assert plan['mesh'] == {'data': 8, 'model': 4, 'fsdp': True}
  # Weights and two moments of each: 544 heads on 32 devices. What else there is are
  # the guess, the bias and the counts.
  share = 3 * 4 * 4 * 544 * 513 * 513 // 32
  assert 0 <= plan['state_bytes'] - share < 1000
  assert plan['donated_bytes'] >= plan['state_bytes']
  # Over `data` A_h and b_h of a device's 136 heads, but no weights, which are four
  # times as much; over `model` 256 prompts of 512 examples and a query, but no target.
  heads = 136 * (513 + 1) * 513
  prompts = 256 * (512 + 2) * 512
  assert plan['collectives']['all-gather']['bytes'] == 4 * (heads + prompts)
  # What is added up over `data` is their gradient; a TPU stores it in tiles.
  assert plan['collectives']['all-reduce']['bytes'] < 1.3 * 4 * heads
  # As libtpu 0.0.42.1 compiles it; another version may plan otherwise.
  if importlib.metadata.version('libtpu') == '0.0.42.1':
    assert plan['peak_bytes'] == 989_182_976


@pytest.mark.full
@needs_libtpu
@pytest.mark.slow
def test_auto_names_the_smallest_slice_on_which_it_fits(reports):
  (*refused, plan), answer = reports(
    *('multi_head_lsa', 'auto', '--config.task.num_features=32'),
    *('--config.mesh.model=8', '--config.model.num_heads=16'),
  )
  assert answer.returncode == 0, answer.stderr
  # Eight devices for the heads are more than the four of the smallest slices.
  assert [other_plan['topology'] for other_plan in refused] == [
    'v5e:2x2',
    'v4:2x2x1',
    'v6e:2x2',
    'v5p:2x2x1',
  ]
  assert all('there are 4' in other_plan['reason'] for other_plan in refused)
  assert (plan['topology'], plan['fits']) == ('v5e:2x4', True)
  assert 'it fits' in answer.stdout


@pytest.mark.parametrize('topology', ['v5e', 'v5e:4x8 ', 'h100:8', ''])
def test_a_topology_that_is_none_is_one_line(topology, unchecked):
  with refuses(repr(topology), 'v5e: 2x2, 2x4', 'v5p: 2x2x1'):
    slices.report(small_config(), topology)


# On which topology, with which fields, and what must be said.
MISTAKES = [
  ('v5e:3x3', {}, "'v5e:3x3' is not a slice that libtpu knows"),
  ('v5e:2x2', {'mesh.model': 8}, 'and there are 4'),
  (
    'v5e:4x4',
    {'train.batch_size': 24},
    'config.train.batch_size is 24; it must be divisible by the data axis',
  ),
  (
    'v5e:2x2',
    {'mesh.data': 3, 'train.batch_size': 24},
    "3 of the 4 devices of kind 'TPU v5 lite' cannot form it",
  ),
]
ASK = """
import json, sys
import configs
from zoo import UserError
from launch import slices
for topology, fields, _ in json.loads(sys.argv[1]):
  config = configs.get_config('lsa')
  config.update_from_flattened_dict(fields)
  try:
    slices.report(config, topology)
  except UserError as error:
    print(error)
"""


@needs_libtpu
@pytest.mark.slow
def test_a_mistake_is_one_line(cache):
  answer = run([sys.executable, '-c', ASK, json.dumps(MISTAKES)], cache)
  assert answer.returncode == 0, answer.stderr
  lines = answer.stdout.splitlines()
  for line, (_, _, said) in zip(lines, MISTAKES, strict=True):
    assert said in line


def test_without_libtpu_the_extra_is_named(monkeypatch, unchecked):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with refuses(f"pip install -c {CONSTRAINTS} -e '.[tpu]'"):
    slices.report(small_config(), 'v5e:4x8')


MESHES = """
import configs
from launch import slices
from zoo.sharding import make_mesh

config = configs.get_config('multi_head_lsa')
for chip, shapes in slices.SLICES.items():
  for shape in shapes:
    devices = slices._devices(f'{chip}:{shape}')
    for config.mesh.model in (1, 2, 4):
      mesh = make_mesh(read(config), devices)
      assert len(set(mesh.devices.flat)) == len(devices)
      print(mesh.shape['data'] * mesh.shape['model'])
"""


@needs_libtpu
@pytest.mark.slow
def test_every_listed_slice_takes_heads_on_up_to_four_chips(cache):
  answer = run([sys.executable, '-c', MESHES], cache)
  assert answer.returncode == 0, answer.stderr
  sizes = [2**n for n in range(2, 9)]
  assert sorted(map(int, answer.stdout.split())) == sorted(4 * 3 * sizes)


STEP = """HloModule steps, input_output_alias={{ {{0}}: (0, {{}}, must-alias) }}

%summed (p: f32[]) -> f32[] {{
  {line}
}}

%body (p: f32[]) -> f32[] {{
  %c = f32[] call(%p), to_apply=%summed
  %d = f32[] all-gather-done(%c)
}}

ENTRY %main (p: f32[]) -> f32[] {{
  %w = f32[] while(%p), condition=%condition, body=%body
  %last = f32[8]{{0}} all-reduce(%w)
}}
"""


@pytest.mark.parametrize(
  ('line', 'kind', 'size'),
  [
    ('%a = f32[11,66]{1,0:T(8,128)} all-reduce(%x), channel_id=1', 'all-reduce', 2904),
    (
      '%a = (f32[5]{0}, pred[]{:T(128)}) all-reduce(%x, %y), to_apply=%s',
      'all-reduce',
      21,
    ),
    (
      '%a = (bf16[4,8]{1,0}, bf16[32,8]{1,0}) all-gather-start(%x), dimensions={0}',
      'all-gather',
      512,
    ),
  ],
)
def test_collectives_of_a_step_are_counted_with_the_bytes_of_their_results(
  line, kind, size
):
  counts = slices.collectives(STEP.format(line=line))
  assert counts == {kind: {'count': 1, 'bytes': size}}


def test_a_collective_in_several_parts_is_counted_once():
  parts = """%s.1 = f32[8]{0} all-gather-start(%w), channel_id=3
  %s.2 = f32[8]{0} all-gather-done(%s.1), channel_id=3
  %s.3 = f32[8]{0} all-gather(%w), channel_id=4
  %s.4 = f32[8]{0} send(%w), channel_id=5
  ROOT %s.5 = f32[8]{0} all-gather(%w), channel_id=4"""
  counts = slices.collectives(STEP.format(line=parts))
  assert counts == {'all-gather': {'count': 2, 'bytes': 64}}

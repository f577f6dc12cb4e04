"""Mistakes on the command line: one line, exit code 2, and nothing is written."""

import sys

import pytest

import zoo.host
from tests.launch.processes import ROOT
from zoo.core.errors import CONSTRAINTS

_MAIN = 'main --config=configs/yq_lsa.py'
_SMOKE = f'{_MAIN}:smoke'
_CLUSTER = f'{_MAIN} --coordinator=127.0.0.1:1 --num_processes=2'
_OWN = 'main --import=own_classes_under_test'
_AOT = 'aot --config=configs/lsa.py'
_LLM = 'llm --out=out --config=configs/llm'
_PLOT = 'plot --workdir=.'
_PROBE = 'probe --checkpoint=checkpoints/yq_lsa'
_SWEEP = 'sweep --config=configs/multi_head_lsa.py:smoke --workdir=x'
# Each command has what it alone reads; what several share stands with one of them. In
# the folder are those files of tests/launch/conftest.py.
_MISTAKES = {
  'main': ('--config is missing', 'configs/yq_lsa.py'),
  'main --config=': '--config is empty',
  'main --config=nofile.py': 'nofile.py does not exist',
  'main --config=configs/yq_lsa': 'did you mean configs/yq_lsa.py?',
  f'main --config={ROOT}/README.md': 'is no Python file',
  'main --config=configs/transfomer.py': 'did you mean configs/transformer.py?',
  'main --config=transformer': 'did you mean configs/transformer.py?',
  f'{_MAIN}:papr': ("variant 'papr'", 'paper, smoke'),
  f'{_MAIN} --wrkdir=x': ('unknown flag --wrkdir', 'workdir'),
  f'{_MAIN} stray': "'stray'",
  f'{_MAIN} --config.train.nmu_steps=3': "did you mean 'config.train.num_steps'",
  'main --config configs/yq_lsa.py --config.train.nmu_steps=3': (
    "did you mean 'config.train.num_steps'"
  ),
  'main --config=misspelt_field.py': (
    "misspelt_field.py, line 6: unknown field 'batchsize'; its section has batch_size",
    "did you mean 'batch_size'?",
  ),
  'main --config=other_type.py': (
    "other_type.py, line 6: the field 'num_steps' cannot be many, of the type str",
    'it must be of the type int',
  ),
  'main --config=dotted_key.py': (
    'dotted_key.py, line 6: a key of the dictionary has a dot',
    'such as layers/0/mixer',
  ),
  f'{_MAIN} --config.noise=3': ("unknown field 'config.noise'", 'task, train'),
  f'{_MAIN} --config.trian.num_steps=3': "did you mean 'config.train.num_steps'",
  'main --config=configs/transformer.py --config.model.mixer_options.state_size=8': (
    "unknown field 'config.model.mixer_options.state_size'",
    'mixer_options="{\'state_size\': 32}"',
  ),
  f'{_MAIN} --config.train.num_steps=abc': '=abc: it must be of the type int',
  f'{_MAIN} --config.task.noise_std=0..1': '=0..1: it must be of the type float',
  f'{_MAIN} --config.task.prior_mean={"[" * 3000}': 'prior_mean',
  f'{_MAIN} --config.model.name=yqlsa': "did you mean 'yq_lsa'",
  f'{_SMOKE} --config.model.name=transformer': (
    "config.model.name is 'transformer'; it must be 'yq_lsa', since the fields of ",
    'choose the other model by --config=configs/transformer.py',
  ),
  f'{_MAIN} --config.train.num_steps=0': ('num_steps is 0', 'from 1'),
  f'{_MAIN} --config.train.num_steps=None': 'config.train.num_steps is None',
  'main --config=configs/transformer.py:smoke --config.model.tokens=joint': (
    "must be 'query' for 'transformer'",
    "tokens are 'joint'",
  ),
  f'{_MAIN} --config.train={{}}': '--config.train is a section; set its fields one',
  f'{_MAIN} --config.train=5': '--config.train=5: it must be a dictionary',
  f'{_MAIN} --config.model=lsa': '--config.model=lsa: it must be a dictionary',
  f'{_MAIN} --config.optimizer.scales=3': '=3: it must be a dictionary',
  f'{_MAIN} --config.task.name=urns': '--config=FILE:task=urns, which sets its',
  f'{_MAIN} --config.task.prior_mean=1e39': ('has the size 1e+39', 'most 3.4e+38'),
  f'{_MAIN} --config.task.prior_mean=(1,2,3,4,-1e39)': 'prior_mean has the size 1e+39',
  f'{_MAIN} --config.optimizer.learning_rate=1e39': 'learning_rate is 1e+39; it must',
  f'{_SMOKE} --config.model.num_heads=100000000000': (
    'the memory is not enough',
    'or config.model,',
  ),
  f'{_SMOKE} --config.optimizer.name=adamw --config.optimizer.decay=w_x,all': (
    "config.optimizer.decay has 'w_x', which matches no weight",
    'the nearest are w_',
  ),
  'main --config=configs/omniglot.py:smoke': (
    'config.task: the data set omniglot is not in ',
    'data; tfds build omniglot --data_dir=',
    ' --file_format=array_record',
  ),
  f'{_MAIN} --workdir=a\0b': 'zero byte',
  f'{_MAIN} --workdir=new/{"a" * 256}/x': ('aaa… has 256 bytes', 'at most 255'),
  f'main --config={"a" * 300}.py': 'aaa… has 303 bytes',
  f'probe --checkpoint={"a" * 300}': 'aaa… has 300 bytes',
  f'plot --workdir={"a" * 300}': 'aaa… has 300 bytes',
  f'{_MAIN} --workdir=gs://': "'gs:' is no folder; it must be like gs://bucket/folder",
  f'{_SMOKE} --config.eval.num_batches=0 --workdir=taken/x': 'cannot be written',
  f'{_MAIN} --workdir=.': 'is not empty',
  f'{_MAIN} --workdir=': '--workdir=: it must name a folder',
  f'{_MAIN} --coordinator=127.0.0.1:1': 'give all three',
  f'{_CLUSTER} --process_id=2': ('--process_id is 2', '--num_processes, which is 2'),
  f'{_CLUSTER} --process_id=1 --coordinator=here': ("is 'here'", 'HOST:PORT'),
  # Models and tasks of one's own.
  f'{_OWN} --config=own_model.py:smoke,task=two_outputs': (
    "'own_model' predicts one number",
    "'two_outputs' has 2 outputs",
  ),
  f'{_OWN} --config=own_model.py:smoke --config.objective.positions=every': (
    "positions is 'every'",
    "'own_model', which has no method predictions",
  ),
  f'{_OWN} --config=own_model.py:smoke --config.train.num_steps=0': 'num_steps is 0',
  f'{_SMOKE},task=parity --config.objective.name=exact': 'the task is of type Parity',
  f'{_SMOKE},task=parity --config.task.noise_std=1': "field 'config.task.noise_std'",
  f'{_SMOKE} --config.task.name=parity': "task 'parity', 'feature_covariance'",
  f'{_SMOKE} --import=broken_under_tset': "did you mean 'broken_under_test'?",
  f'{_SMOKE} --import=zoo.nothing': '--import=zoo.nothing: no module has this name',
  f'{_SMOKE} --import=': '--import is empty',
  f'{_SMOKE} --import=own_model.py': 'give the name of the module, without .py',
  # Other commands.
  _AOT: '--topology is missing',
  f'{_AOT} --topology=v5e:2x2 --json=no/where.json': '--json=no/where.json',
  'atlas --scale=huge': ('--scale=huge', '<laptop|gpu>'),
  'atlas --models=gpt5': "unknown name in --models: 'gpt5'",
  'atlas --tasks=poker': "unknown name in --tasks: 'poker'",
  'atlas --guesses=': '--guesses is empty',
  'atlas --context_lengths=10,0': "--context_lengths is '10,0'",
  'atlas --context_lengths=ten': "--context_lengths is 'ten'",
  'atlas --part=5/4': "the part is '5/4'",
  'atlas --seeds=4..2': "--seeds is '4..2'; it must be as 0..4 or 0,1,2",
  'atlas --seeds=-1': "--seeds is '-1'",
  'atlas --seeds=0..10000': "--seeds is '0..10000'; it must be as 0..4 or 0,1,2, up",
  'atlas --budgets=3,2': "--budgets is '3,2'; it must be increasing numbers",
  'atlas --budgets=many': "--budgets is 'many'",
  'benchmark --seconds=-1': '--seconds is -1',
  'benchmark --json=': '--json=: it must name a file',
  'benchmark --models=nobody': "unknown --models 'nobody'",
  'benchmark --models=gru --scaling=a.png': 'give one of them',
  'benchmark --scaling=picture.txt': 'must end in .png, .svg or .pdf',
  f'benchmarks.baselines --values={ROOT}/docs/baselines --task=linear': (
    "unknown task with known values 'linear'; known: associative"
  ),
  'benchmarks.baselines --num_prompts=1': '--num_prompts is 1; it must be an integer',
  'benchmarks.baselines --values=.': 'holds no reference values',
  'benchmarks.mixers --tokens=41,many': "--tokens is ['41', 'many']; it must be",
  'catalog --exprot': 'exprot',
  'catalog lsa': "unexpected argument 'lsa'",
  'headlines one_steps': "did you mean 'one_step'?",
  'headlines one_step --out=taken': 'taken cannot be the output folder',
  'llm --out=out': '--config is missing',
  f'{_LLM}/smol.py': 'configs/llm/smol.py does not exist',
  f'{_LLM}/smollm2.py:smok': "did you mean 'smoke'",
  f'{_LLM}/smollm2.py --config.prompts.num=3': 'num_examples, num_prompts',
  f'{_LLM}/smollm2.py': '--data is missing',
  f'{_LLM}/smollm2.py --data=.': 'stsb-en-train.csv; --data must hold',
  f"{_LLM}/ablation.py --config.ablation.guesses=('cosin',)": "did you mean 'cosine'",
  f'{_LLM}/ablation.py --config.guess.model=cosine': "field 'config.guess.model'",
  f'{_LLM}/smollm2.py --only=a': '--only is for an ablation',
  'paper --figures=7': "unknown figure '7'",
  'paper --figures=': 'no figure is named',
  'paper --objective=exakt': "did you mean 'exact'?",
  'paper --out=taken': 'taken cannot be the output folder',
  'paper --llm=. --out=out': 'holds no finished run of launch.llm',
  'plot': '--workdir is missing',
  _PLOT: 'holds no run: there',
  f'{_PLOT} --out=a.txt': 'must end in .png, .svg or .pdf',
  f'{_PLOT} --out=': "--out is ''",
  f'{_PLOT} --x=seed': "--x is 'seed'; it is for the risk at the end of a sweep",
  f'{_PLOT} --baselines=bayes': '--baselines is for plots with --against=examples',
  'plot --workdir=~nobody-here/x': "'~nobody-here/x'",
  'probe': '--checkpoint is missing',
  'probe --checkpoint=nowhere': 'nowhere does not exist',
  'probe --checkpoint=.': ' holds no checkpoint',
  f'{_PROBE} --against=bays': "did you mean 'bayes'?",
  f'{_PROBE} --step=3': 'has no step 3; it has [',
  f'{_PROBE} --out=taken': 'which is not a folder',
  f'{_PROBE} --seconds=5': '--seconds belongs to --interventions',
  'strategies --checkpoint=checkpoints/yq_lsa --out=taken': 'which is not a folder',
  f'{_SWEEP} --sweep=config.seed=0,1': "the field 'config.seed' must be given without",
  _SWEEP: '--sweep is missing',
  f'{_SWEEP} --sweep=task.prior_men=1': "did you mean 'prior_mean'?",
  f'{_SWEEP} --sweep=seed=1 --sweep=seed=2': 'twice',
  f'{_SWEEP} --sweep=model.num_heads=0': 'num_heads',
  f'{_SWEEP} --sweep=model.num_heads,seed=1': "'1' must have 2 values",
  f'{_SWEEP} --sweep=task.noise_std=0..a': "noise_std is '0..a'; it must be a",
  f'{_SWEEP} --sweep=seed=0..9999 --sweep=task.noise_std=0,1,2,3,4,5,6,7,8,9,10': '110',
}
# A URL in place of a folder.
_URL = 'gs://bucket/run'
_MISTAKES |= {
  line: (_URL, 'folder')
  for line in (
    f'plot --workdir=taken --out={_URL}.png',
    f'probe --checkpoint=. --out={_URL}',
    f'probe --checkpoint=. --json={_URL}',
    f'paper --smoke --llm={_URL}',
    f'results --docs={_URL}',
    f'benchmarks.baselines --out={_URL}',
    f'{_LLM}/smollm2.py --data={_URL}',
  )
}
# These take a folder in a bucket; tests/training/test_buckets.py has what they refuse.
_S3 = 's3://bucket/run'
_MISTAKES |= {
  f'{line}={_S3}': (_S3, 'give a local')
  for line in (
    f'{_SMOKE} --workdir',
    f'{_SWEEP} --sweep=seed=0,1 --workdir',
    'plot --workdir',
    'probe --checkpoint',
    'paper --smoke --out',
    'atlas --out',
    'headlines --out',
  )
}


@pytest.mark.usefixtures('promotion_that_optax_needs')
@pytest.mark.parametrize('line', _MISTAKES, ids=lambda line: line[:70])
def test_a_mistake_is_one_line(call, folder, line):
  before = sorted(folder.rglob('*'))
  answer = call(*line.split(' '))
  assert answer.code == 2, answer
  (error,) = answer.err.splitlines()
  assert error.startswith('error: ')
  assert answer.out == ''
  said = _MISTAKES[line]
  for part in (said,) if isinstance(said, str) else said:
    assert part in error
  assert sorted(folder.rglob('*')) == before


def test_without_the_extra_a_bucket_is_refused_in_one_line(call, folder, monkeypatch):
  for name in [*sys.modules]:  # also of earlier tests
    if name.split('.')[0] == 'gcsfs' or name == 'zoo.host.gcs':
      monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr(zoo.host, 'gcs', raising=False)
  monkeypatch.setitem(sys.modules, 'gcsfs', None)
  answer = call(*_SMOKE.split(), f'--workdir={_URL}')
  assert answer.code == 2
  assert answer.err == (
    f'error: gcsfs is not installed; gs:// needs pip install -c {CONSTRAINTS} '
    "-e '.[gcs]'\n"
  )

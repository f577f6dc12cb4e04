"""An ablation of SmolLM2: several kinds of guesses × numbers of examples.

  python -m launch.llm --config=configs/llm/ablation.py --data=STSB --out=runs/ablation

STSB is the folder with the files of the benchmark. Other benchmarks are variants, such
as `ablation.py:trec_qa`; studies/llm/README.md lists them. Rerun the same command to
resume after an interruption. Rerun it with more guesses or numbers of examples to add
cells:

  --config.ablation.guesses="('cosine', 'oracle')" --config.ablation.num_examples="(0,)"
"""

from typing import Any

from ml_collections import ConfigDict

from configs.llm import smollm2
from studies.llm.config import ablation_section


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of the ablation; configs/llm/defaults.py has the variants."""
  config: Any = smollm2.get_config(variant)
  with config.unlocked():
    # Each cell has its own guess and number of examples.
    for field in 'model', 'bias', 'noise', 'shuffled':
      del config.guess[field]
    del config.prompts.num_examples
    config.ablation = ablation = ablation_section()

    # All cells have the same queries, so that they are compared on the same prompts.
    config.prompts.num_prompts = 24
    # No guess was fitted to dev, so its examples show how good guesses are on new text.
    config.prompts.context_split = 'dev'
    # This is enough for an answer, also for one that repeats the query.
    config.readouts.max_new_tokens = 64

    # Without `low` labels are classes. Noise then replaces a class by another one.
    if config.benchmark.low is None:
      ablation.guesses = 'network', 'cosine', 'constant', 'shuffled', 'wrong', 'oracle'
      ablation.noise = (0.0, 0.2, 0.4, 0.6, 0.8)  # Probabilities of another class.
    if 'smoke' in variant.split(','):
      config.prompts.num_prompts = 4
      config.readouts.max_new_tokens = 20
      ablation.guesses = ('cosine', 'wrong', 'oracle')
      ablation.noise = ablation.noise[::4]
      ablation.num_examples = (0, 2)
  return config

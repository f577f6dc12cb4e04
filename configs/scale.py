"""Linear attention with 512 features and 544 heads: 573 million parameters.

  python -m launch.aot --config=configs/scale.py --topology=auto
  python -m launch.main --config=configs/scale.py --distributed

This size has not been trained yet. The numbers below come from theory, from smaller
models and from the compiler.

With d = C = 512 and w* = [2, …, 2] the risk is 2560 before any training, 256.2654 at
the infimum for a fixed guess of 0, and 256.2498 for one step of gradient descent from
w*. The gap of Theorem 1 (arXiv 2512.04268) shrinks as 1/(dC), but the exact risk still
shows it.

The hyper-parameters are scaled from those of d = 10. The initial scale is ∝ d^(-5/8),
which keeps the ratio of two variances: that of the first predictions grows as d⁶
scale⁸, and that of the labels as d. The learning rate is ∝ 1/d, since a matrix product
sums over d entries, and a step changes each of them by up to the rate.

With these rules smaller models end above their infima by 0.6 % (d = C = 64, 65 heads,
1000 steps on the exact risk), by 3.9 % (the same model, 2000 steps on sampled prompts),
and by 3.1 % or 1.2 % (d = C = 32, 33 heads, 2000 or 6000 steps). Their batches are as
small relative to e = d + 1 as the batches here: B C / e² = 4.

This is the memory of a step per chip, from launch.aot with libtpu 0.0.42.1.
docs/scaling.md has other slices, the other programs of a run, and the traffic.

  v5e:2x2    7.5 of 15.75 GiB, of which the state is 1.6
  v5e:4x8    0.9 of 15.75 GiB, of which the state is 0.2

Without noise more than d = 512 heads bring no lower risk, and with noise more than
d + 1 (docs/theory_heads.md). This config has 544 heads, which 32 devices divide evenly;
the numbers above were measured with them.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import multi_head_lsa


def get_config() -> ConfigDict:
  """Returns the config of multi_head_lsa at d = 512."""
  config: Any = multi_head_lsa.get_config()
  config.task.num_features = config.task.context_length = 512
  config.model.num_heads = 544
  config.model.init_scale = 0.0085  # This is 0.1 (10 / d)^(5/8).
  config.optimizer.learning_rate = 1e-4  # This is 5e-3 · 10 / d.
  # A TPU host has 4 chips, so all heads stay on one host.
  config.mesh.model = 4
  config.mesh.fsdp = True
  # The exact risk of each log line takes 3 s on one core of the host.
  config.train.log_every = 250
  # A checkpoint takes 6.9 GB, and a pod may be pre-empted at any time.
  config.checkpoint.every, config.checkpoint.keep = 500, 2
  config.eval.every, config.eval.num_batches = 500, 4
  return config

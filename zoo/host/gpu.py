"""What XLA must be told about GPUs before JAX starts."""

import importlib.util
import os

# With this pass XLA aborts, or never ends, while it compiles a transformer for a GPU
# (openxla/xla, issue 47381). XLA also aborts if it does not know a flag, so the flag
# must be tried before the bounds of jax in pyproject.toml change.
_PASS = '--xla_gpu_enable_triton_gemm'


def leave_out_pass() -> None:
  """Sets the flag of XLA that leaves out a pass, unless the user has set the flag.

  XLA reads its flags when JAX starts, so `import zoo` calls this function. Without a
  plugin of JAX for other devices than CPUs and TPUs, nothing is set.
  """
  if importlib.util.find_spec('jax_plugins') is None:
    return
  flags = os.environ.get('XLA_FLAGS', '').split()
  if not any(flag.partition('=')[0] == _PASS for flag in flags):
    os.environ['XLA_FLAGS'] = ' '.join([*flags, f'{_PASS}=false'])

"""Trains GPT-2 on in-context linear regression in PyTorch.

This is the usual program for the setting of Garg et al. (arXiv 2208.01066). The model
is `GPT2Model` of the library transformers between two linear layers. It reads tokens
x_1, y_1, x_2, …, and Adam minimises the squared error at every x on new prompts at each
step. The program needs torch and transformers, which the extra `llm` installs, but not
this library.
"""

from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2Model


class Transformer(torch.nn.Module):
  """GPT-2 between a linear embedding of the tokens and a linear readout."""

  def __init__(
    self,
    num_layers: int,
    width: int,
    num_heads: int,
    num_features: int,
    num_points: int,
  ):
    super().__init__()
    self.read_in = torch.nn.Linear(num_features, width)
    self.body = GPT2Model(
      GPT2Config(
        n_positions=2 * num_points,
        n_embd=width,
        n_layer=num_layers,
        n_head=num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
      )
    )
    self.read_out = torch.nn.Linear(width, 1)

  def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns predictions `[b, n]` at all points, for `x [b, n, d]` and `y [b, n]`."""
    labels = torch.zeros_like(x)
    labels[..., 0] = y
    tokens = torch.stack([x, labels], dim=2).flatten(1, 2)[:, :-1]
    body = self.body(inputs_embeds=self.read_in(tokens)).last_hidden_state
    return self.read_out(body[:, ::2])[..., 0]


def make_run(
  num_layers: int,
  width: int,
  num_heads: int,
  num_features: int,
  num_points: int,
  batch_size: int,
  *,
  device: str = 'cpu',
  is_compiled: bool = False,
) -> Callable[[int], None]:
  """Returns a function that takes a number of training steps and waits for them.

  With `is_compiled` the model is compiled by `torch.compile`.
  """
  torch.manual_seed(0)
  with torch.device(device):
    model = Transformer(num_layers, width, num_heads, num_features, num_points)
  predict = torch.compile(model) if is_compiled else model
  optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

  def step() -> None:
    w = torch.randn(batch_size, num_features, device=device)
    x = torch.randn(batch_size, num_points, num_features, device=device)
    y = (x @ w[:, :, None])[..., 0]
    loss = ((predict(x, y) - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

  def run(steps: int) -> None:
    for _ in range(steps):
      step()
    # A GPU works on after the call of a step has returned.
    if device == 'cuda':
      torch.cuda.synchronize()

  return run

"""What is read from the text of a compiled training program."""

import pytest

from zoo.plan.step_text import (
  collectives,
  cycles,
  kernels,
  lost_donations,
  sum_in_a_step,
)


@pytest.mark.parametrize(
  ('line', 'kind', 'size'),
  [
    ('%a = f32[11,66]{1,0:T(8,128)} all-reduce(%x), channel_id=1', 'all-reduce', 2904),
    (
      '%a = (f32[5]{0}, pred[]{:T(128)}) all-reduce(%x, %y), to_apply=%s',
      'all-reduce',
      21,
    ),
    (
      '%a = (bf16[4,8]{1,0}, bf16[32,8]{1,0}) all-gather-start(%x), dimensions={0}',
      'all-gather',
      512,
    ),
    (
      '%a = (f32[1,8,128]{2,1,0}, u32[], token[]) send(%x, %t), channel_id=2, '
      'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}',
      'between slices',
      4096,
    ),
  ],
)
def test_collectives_are_counted_inside_the_loop_over_steps(line, kind, size):
  text = f"""HloModule steps, input_output_alias={{ {{0}}: (0, {{}}, must-alias) }}

%summed (p: f32[]) -> f32[] {{
  {line}
}}

%body (p: f32[]) -> f32[] {{
  %c = f32[] call(%p), to_apply=%summed
  %d = f32[] all-gather-done(%c)
}}

ENTRY %main (p: f32[]) -> f32[] {{
  %w = f32[] while(%p), condition=%condition, body=%body
  %last = f32[8]{{0}} all-reduce(%w)
}}
"""
  assert collectives(text) == {kind: {'count': 1, 'bytes': size}}
  assert lost_donations(text, [((), None), ((), None)]) == ['']


# A step of two fusions, one of which runs seven times, and of a collective in parts.
STEP = """HloModule steps, input_output_alias={ {0}: (0, {}, must-alias) }

%fused (p: f32[]) -> f32[] {
  %inner = f32[] add(%p, %p), backend_config={"estimated_cycles":"1000"}
}

%inner_body (p: f32[]) -> f32[] {
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %f.1 = f32[] fusion(%p), calls=%fused, backend_config={"estimated_cycles":"10"}
}

%inner_condition (p: f32[]) -> pred[] {
  %limit = s32[]{:T(128)} constant(7)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%body (p: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %b = f32[]{:T(128)} bitcast(%p)
  %f.2 = f32[] fusion(%b), calls=%fused, metadata={op_name="jit(call)/call("}
  %c = f32[] copy(%f.2), backend_config={"estimated_cycles":"5"}
  %w = (s32[], f32[]) while(%c), condition=%inner_condition, body=%inner_body
  %s.1 = f32[8]{0} all-gather-start(%w), channel_id=3
  %s.2 = f32[8]{0} all-gather-done(%s.1), channel_id=3
  %s.3 = f32[8]{0} all-gather(%w), channel_id=4
  ROOT %s.4 = f32[8]{0} all-gather(%w), channel_id=4
}

ENTRY %main (p: f32[]) -> f32[] {
  %before = f32[] copy(%p), backend_config={"estimated_cycles":"100000"}
  %w = f32[] while(%before), condition=%unknown, body=%body
}
"""


def test_cycles_and_kernels_of_a_step_are_counted_as_often_as_they_run():
  assert sum_in_a_step(STEP, cycles) == 5 + 7 * 10
  assert sum_in_a_step(STEP, kernels) == 2 + 7


def test_a_collective_in_several_parts_is_counted_once():
  assert collectives(STEP) == {'all-gather': {'count': 2, 'bytes': 64}}

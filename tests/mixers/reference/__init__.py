"""Each registered mixer a second time: NumPy, float64, one token after the other.

A file defines `outputs(p, x, num_heads)`, with the options of the mixer as further
arguments: the outputs `[n, w]` for the tokens `x` `[n, w]` of one prompt, where `p` has
the mixer's weights by path, such as `query.kernel`. Where a state is carried from token
to token, `recurrence` is the rule of one head. `recurrence.py` has the equation that
most of these rules are cases of, and `parts.py` the layers around them. Nothing but the
weights is taken from zoo. `tests/mixers/test_reference.py` compares both.
"""

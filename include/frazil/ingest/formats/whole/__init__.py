"""The formats `string` and `bytes`: the whole value fills one column."""

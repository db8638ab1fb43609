"""The formats `string` and `bytes`: the whole record value fills one column."""

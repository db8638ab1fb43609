"""The format `csv`: each value is one line of delimited fields."""

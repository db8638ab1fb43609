"""The parts of `bench.upserts`: the table and its changes, and the systems that merge them."""

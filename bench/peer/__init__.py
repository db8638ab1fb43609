"""The parts of `bench.peers`: the records, the systems that are compared, and how a process tree is measured."""

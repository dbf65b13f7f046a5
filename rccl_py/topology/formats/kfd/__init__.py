"""The AMD kernel driver's view of a node: a copy of its topology folder."""

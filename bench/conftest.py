"""Benchmarks: limits that users were promised, measured with pytest-benchmark.

Run them with `make bench`. Absolute limits are asserted on the median; what can be a ratio is a
ratio of two things measured in one run. Rows and bytes are reported beside the times.
"""

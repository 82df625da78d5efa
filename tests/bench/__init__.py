"""Benchmarks: never timed tests. `make bench` writes bench/results.json."""

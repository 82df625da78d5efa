"""Coverage-guided fuzzing of the parsers: `make fuzz`, or `python -m tests.fuzz TARGET SECONDS`."""

"""What a stranger may hand over, in every format: readers.py lists who reads what, mutants.py what is done to it."""

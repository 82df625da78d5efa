"""What a log hands out and takes in: tiles, proofs, the files of a replay, entries that others submit."""

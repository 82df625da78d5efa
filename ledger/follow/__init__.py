"""Logs of others: read from afar, mirrored, watched, and convicted where they fork."""

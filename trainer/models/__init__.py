"""Models as step programs: the built-in decoder, modules of the user's own, and weights from elsewhere."""

"""From a torch module to a stored program: its calls captured, guarded and judged."""

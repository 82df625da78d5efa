"""Ranks: several processes or machines that share each step and compute the same bits."""

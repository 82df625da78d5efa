"""Traces of single steps: what every operator wrote, for another party to compare with."""

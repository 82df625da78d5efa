"""Drills: faults planted in a copy of a run, which audits must find."""

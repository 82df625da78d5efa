"""Witnesses: cosigning the checkpoints of others, having one's own cosigned, and policies on who must have."""

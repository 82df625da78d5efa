"""Audits: announced, drawn, replayed, compared and signed, here or of somebody else's log."""

"""The file in which a ledger is kept: base tables, derived tables, admission, and what guards them. `ledger/store.py`
puts them together.
"""

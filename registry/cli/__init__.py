"""The commands of `ledger` about models and their status."""

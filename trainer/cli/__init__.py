"""The commands of `ledger` that build data, train, audit and explain."""

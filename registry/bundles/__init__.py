"""The proof that travels with a model: gathered from a ledger, read as evidence, held together."""

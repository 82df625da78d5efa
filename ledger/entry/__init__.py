"""What an entry says: the table of kinds, the signed envelope, and the rules that hold between entries."""

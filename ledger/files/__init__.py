"""Files and texts at the edge: written durably, read within limits, shown without surprises."""

"""What the gate decides by: rules, lineage, memory, and the scan of the weights themselves."""

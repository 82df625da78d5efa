"""What every operator of a step wrote: recorded, compared, and disputed down to one chunk."""

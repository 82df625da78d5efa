"""Training to the bit, and again: one step function, run by the trainer and by whoever replays it.

config, start, step, fold, state, run   from a configuration to signed steps and stored states
data/, models/                          which tokens; which program
cluster/                                several ranks, the same bits
history, ancestry, replay, material     a run as its ledger tells it, computed again
auditing/, traces/, drills/             audits, what they show where bits differ, and whether they would find a fault
"""

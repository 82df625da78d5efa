"""The arithmetic: fixed-order operators in C++, step programs, and the slow exact reference (docs/arithmetic.md).

ops         the operator table and the digest of the arithmetic
program     step programs, their executor, single calls
arena       where a program's temp buffers lie
philox      random numbers by key and position
reduce      sums and checks of whole buffers
host        binary64 scalars
reference   every definition in exact integers
selftest    digests of everything, as `python -m bitwitness.kernels` prints them
nn          modules to write a model with
capturing   such a model as a stored program
tracing     what every operator of a step wrote, and who is right where two parties differ
"""

"""The transparency log: signed entries in a Merkle tree, kept in one SQLite file (docs/formats).

merkle, note, checkpoint, tiles, tlog_proof   what others speak too: RFC 6962, C2SP
jcs, commitments, keys, trust                 canonical JSON, commitments, keys, and which of them are believed
entry/                                        what an entry says
store, run_chain, sqlite/                     the file, its one writer, a run's chain
verify*, fsck                                 everything checked again from raw bytes, without the writer's code
exchange/, follow/, witnessing/               between logs, their readers and their witnesses
project, cli/, datasette_plugin/              a folder, a command and pages for people
"""

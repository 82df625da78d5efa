"""The file of a captured model (docs/formats/captured-model.md): with a run, on a server, or in a release.

A genesis commits to the SHA-256 of its bytes.
"""

MODEL_FILE = "model.json"
MODEL_LIMIT = 16 << 20  # bytes that are read of one: a layer takes some 20 KiB

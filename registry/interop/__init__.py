"""Released versions for other programs: Hugging Face, SLSA, CycloneDX, OpenSSF model signing, RFC 3161."""

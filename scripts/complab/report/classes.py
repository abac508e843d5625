"""Which classes can a finding of an audit have, and which exit status goes with each? From good to bad."""

FRESH, STALE, UNPROVEN, MISSING, TAMPERED = CLASSES = ("fresh", "stale", "unproven", "missing", "tampered")
EXIT = {FRESH: 0, STALE: 5, UNPROVEN: 6, MISSING: 7, TAMPERED: 8}

"""The measuring world: torch and the standard library, never pandas or matplotlib."""

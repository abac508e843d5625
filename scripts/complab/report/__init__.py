"""The reporting world: verified evidence to exhibits, never torch or snakemake."""

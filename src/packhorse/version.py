"""The version of packhorse, importable without anything else."""

VERSION = "0.1.0"

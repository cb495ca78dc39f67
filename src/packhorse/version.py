"""The version of packhorse, importable without anything else."""

VERSION = "0.2.0.dev0"

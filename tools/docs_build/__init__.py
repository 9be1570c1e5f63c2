"""Writes the reference pages from the code, so that they cannot say something else."""

"""Workspace transactions: on kernel overlays, or on a working copy where overlays cannot be mounted."""

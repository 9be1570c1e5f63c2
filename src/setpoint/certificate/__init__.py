"""Recheck a certificate offline. Imports nothing of the runtime: only the standard library and ``cryptography``."""

"""Settings of the service, from an INI-like text."""

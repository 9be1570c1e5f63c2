"""Outside effects over one technology a file, for authors of capabilities."""

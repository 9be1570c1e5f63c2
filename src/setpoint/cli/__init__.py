"""The command line. ``main.main`` is the entry point; ``grammar`` declares the verbs, one module a group does them."""

"""The files that nouns come in: a module per format, `files` for all of them."""

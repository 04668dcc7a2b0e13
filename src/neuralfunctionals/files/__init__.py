"""Files: atomic writing, and reading of files that are not trusted."""

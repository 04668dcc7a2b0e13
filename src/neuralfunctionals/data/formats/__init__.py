"""Import and export of networks: weight files, published datasets, and objects that users pass in."""

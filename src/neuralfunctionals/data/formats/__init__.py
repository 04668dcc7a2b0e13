"""Networks from elsewhere and for elsewhere: weight files, published datasets, what users hand over."""

"""Generated protocol buffer code: written by `make proto`, never by hand."""

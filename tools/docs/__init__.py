"""The documentation that is made from the code, and the web site of all pages (``make docs``)."""

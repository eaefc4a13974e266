"""What fuzz.py is made of: valid inputs, changes to them, the process that reads them."""

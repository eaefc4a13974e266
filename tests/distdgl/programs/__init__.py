"""Programs that plain DGL and RAF must compute alike; see tests/support/programs.py."""

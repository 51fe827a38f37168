"""The commands people type.  They translate and print; the work is done elsewhere."""

"""Data: a stage's loaders, what they yield, and its way onto the device."""

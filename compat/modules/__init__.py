"""Modules: the light bases of modules and data modules, and how they are made again from files."""

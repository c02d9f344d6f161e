"""Processes: the group of this job, starting ranks on this machine, and what a started rank runs."""

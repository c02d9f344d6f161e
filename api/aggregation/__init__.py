"""Aggregation: results of batches, added up to those of an epoch, over all ranks."""

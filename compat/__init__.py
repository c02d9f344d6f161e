"""Run LightningModule-like classes on DeepEpochs: the names of this layer."""

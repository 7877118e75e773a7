"""Run a model by a plan: `enable`, `train_step`, `split`."""

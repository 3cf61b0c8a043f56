"""One thin script per stage of dvc.yaml."""

"""What people and trackers see during a run."""

"""What people and trackers see while runs go on."""

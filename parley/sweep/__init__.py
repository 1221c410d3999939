"""Many runs: comparisons and searches."""

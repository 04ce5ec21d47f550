"""meta_learners."""

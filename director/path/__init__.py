"""The path of a teacher: where it is read, what a student learns from, and its cache on disk."""

"""One loop and the trainings that use it, and prediction with what they trained."""

"""What a reader sees: tables, figures, MLflow."""

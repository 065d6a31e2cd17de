"""What a study is told: the schema of its files, reading them, and the pages generated from the schema."""

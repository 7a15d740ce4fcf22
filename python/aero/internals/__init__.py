"""What several rooms share and nobody types."""

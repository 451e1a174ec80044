"""Pictures of the papers, made by one command."""

"""The language model, one token at a time; sampling; detokenising."""

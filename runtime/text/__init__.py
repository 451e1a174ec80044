"""The language model, one token at a time: state, sampling and detokenisation."""

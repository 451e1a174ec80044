"""The mathematics: Robust Filter Attention, its recurrent twins, and the networks built on them."""

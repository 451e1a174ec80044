"""The recurrent twins of attention: the plain IRKF and its gated-slot form for language."""

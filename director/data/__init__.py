"""One module per data set, and what turns a data set into the batches of a run: arrays in, arrays out, no model."""

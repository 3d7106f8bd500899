"""What the model may do in its sandbox, one file a family; `offered` has the table of all."""

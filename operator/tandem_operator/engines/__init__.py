"""How each engine is run and read. One module an engine; today the builtin worker."""

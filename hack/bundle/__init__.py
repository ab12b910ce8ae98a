"""Makes a bundle: what `make demo BUNDLE=folder` needs on a GPU machine that has torch, but no network."""

"""The images: what goes into them."""

"""The images: what goes into them, and how they are built on this machine."""

"""Coverage-guided fuzzing of what reads files from elsewhere: `make fuzz`. Not part of `make test`."""

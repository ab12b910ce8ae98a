"""The operator: rolls target + drafter pairs out and takes them back."""

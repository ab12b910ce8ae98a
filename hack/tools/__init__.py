"""Programs that only development needs, each had in one way that works without root: built from released Go modules,
or taken out of Debian's package. They are kept in the user's cache and shared by all checkouts."""

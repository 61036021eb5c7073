"""One file for each migration, in the order of their numbers. One that was released is never changed."""

"""Plans that travel: as plain data, in files that run nothing."""

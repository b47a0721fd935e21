"""What hofunc reads of what torch keeps to itself: every fact, on the torch that is installed."""

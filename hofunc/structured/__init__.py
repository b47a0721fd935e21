"""What is done with structured derivatives: their terms are contracted, tied, added, indexed, packed, kept and shown."""

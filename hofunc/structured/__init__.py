"""What is done with structured derivatives: terms are contracted, tied, added, indexed, packed, saved and shown."""

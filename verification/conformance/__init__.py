"""hofunc against torch's own database of ops, torch.testing's OpInfo."""

"""Checks of derivatives on users' own functions: hodcheck, and golden derivatives."""

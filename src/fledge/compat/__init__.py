"""Thin faces with names that users know from elsewhere; what they do is done in the other rooms."""

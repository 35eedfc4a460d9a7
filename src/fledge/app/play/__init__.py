"""Matches between people and policies in the browser."""

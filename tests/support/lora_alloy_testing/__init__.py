"""Builders and harnesses that the tests share. Nothing here is imported before a test asks for it."""

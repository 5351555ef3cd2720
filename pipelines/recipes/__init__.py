"""The built-in recipes."""
